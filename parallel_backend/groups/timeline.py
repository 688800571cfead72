"""Where a rank's time goes: spans of requests, steps and communication, in memory of a fixed size.

What a step does not spend in communication is computation. Communication is what a rank waits for: an exchange that
travels while the rank computes counts only from where its result is needed.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from ..device import is_accelerator, new_event, wait_for_stream

CAPACITY = 1 << 15
COMMUNICATION, STEP, REQUEST = "communication", "step", "request"
ANCHOR_MS = 1000.0
UNRECORDED = nullcontext()


class Span(NamedTuple):
    """Something that the rank did. begin, end: nanoseconds of the machine's monotonic clock."""

    name: str
    category: str
    begin: int
    end: int


class HostClock:
    """For ranks that compute where they run: a mark is the time itself."""

    mark = staticmethod(time.monotonic_ns)

    anchor = staticmethod(time.monotonic_ns)

    def wait(self) -> None: ...

    def is_past(self, mark: int) -> bool:
        return True

    def read(self, mark: int) -> int:
        return mark

    def release(self, *marks: int) -> None: ...


class DeviceClock:
    """For ranks whose host runs ahead: a mark is an event in the GPU's current stream, read once it has passed.

    Collectives run in streams of their own, for which the current one waits; events before and after the wait give the
    part that nothing hid. An event's time is a distance in float milliseconds from another, whose time on the host is
    known; that anchor moves along, to keep it exact.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.free: list[torch.Event] = []

    def mark(self) -> torch.Event:
        event = self.free.pop() if self.free else new_event(self.device)
        event.record()
        return event

    def anchor(self) -> int:
        """Ties the GPU's time to the host's, which is returned. Waits for the GPU, idle when a request begins."""
        self.anchored = self.mark()
        self.anchored.synchronize()
        self.anchored_at = time.monotonic_ns()
        return self.anchored_at

    def wait(self) -> None:
        """Until all marks have passed."""
        wait_for_stream(self.device)

    def is_past(self, mark: torch.Event) -> bool:
        return mark.query()

    def read(self, mark: torch.Event) -> int:
        elapsed = self.anchored.elapsed_time(mark)
        at = self.anchored_at + round(elapsed * 1e6)
        if elapsed > ANCHOR_MS:
            self.anchored, self.anchored_at = mark, at
        return at

    def release(self, *marks: torch.Event) -> None:
        """Takes marks back that have been read, to be used again."""
        self.free.extend(mark for mark in marks if mark is not self.anchored)


class Timeline:
    """Records one rank's spans; the oldest give way to new ones. Not to be shared by threads.

    A step's span lies in a request's. Communication's spans do not overlap; each lies in a step's, or, after the last
    step, in the request's alone.
    device: what the rank computes on. capacity: how many spans are kept; with 0, none are recorded.
    """

    def __init__(self, device: torch.device, capacity: int = CAPACITY) -> None:
        self.clock = DeviceClock(device) if is_accelerator(device) and capacity else HostClock()
        self.capacity = capacity
        # Allocated whole, so that a rank's memory does not grow with its first jobs.
        self.kinds = [("", "")] * capacity
        self.begins, self.ends = (array("q", bytes(8 * capacity)) for _ in range(2))
        self.count = 0
        self.pending: deque[tuple[tuple[str, str], Any, Any]] = deque(maxlen=max(1, capacity))
        self.inside: list[tuple[int, int]] = []  # communication since the last step: its begin and its length
        self.waited = 0
        self.steps: list[tuple[int, int]] = []  # of the last request: the nanoseconds of each, and of its communication
        self.last_run: dict[str, Any] = {}

    def communication(self, name: str) -> AbstractContextManager:
        """While entered, the rank waits for others."""
        return Recording(self, (name, COMMUNICATION)) if self.capacity else UNRECORDED

    def step(self, name: str) -> AbstractContextManager:
        """While entered, the rank is in a step: of a loop, or a forward of its own."""
        return Recording(self, (name, STEP)) if self.capacity else UNRECORDED

    @contextmanager
    def request(self, name: str) -> Iterator[None]:
        """While entered, the rank serves a request; after it `last_run` describes the request, if it had steps."""
        begin = self.clock.anchor()
        self.steps = []
        try:
            yield
            self.clock.wait()  # not after an error: the GPU may then wait for a rank that never comes
        finally:
            self.settle()
            self.pending.clear()
            self.keep((name, REQUEST), begin, time.monotonic_ns())
            if self.steps:
                self.last_run = summary(name, self.steps)

    def close(self, kind: tuple[str, str], begin: Any, end: Any) -> None:
        """Takes a span by its marks."""
        self.pending.append((kind, begin, end))
        if kind[1] == STEP:
            self.settle()

    def settle(self) -> None:
        """Reads the marks that have passed; waits for none."""
        while self.pending and self.clock.is_past(self.pending[0][2]):
            kind, *marks = self.pending.popleft()
            begin, end = (self.clock.read(mark) for mark in marks)
            self.clock.release(*marks)
            self.keep(kind, begin, end)
            if kind[1] == COMMUNICATION:
                self.inside.append((begin, end - begin))
                self.waited += end - begin
            elif kind[1] == STEP:
                self.steps.append((end - begin, sum(length for start, length in self.inside if start >= begin)))
                self.inside.clear()

    def keep(self, kind: tuple[str, str], begin: int, end: int) -> None:
        """Puts a span in the place of the oldest."""
        place = self.count % self.capacity
        self.kinds[place], self.begins[place], self.ends[place] = kind, begin, end
        self.count += 1

    def communicated(self) -> float:
        """Seconds of all communication so far, as far as they are known."""
        self.settle()
        return self.waited / 1e9

    def spans(self) -> list[Span]:
        """The spans that are kept, by their ends; without steps of which some communication is not."""
        first = max(0, self.count - self.capacity)
        places = [index % self.capacity for index in range(first, self.count)]
        spans = [Span(*self.kinds[place], self.begins[place], self.ends[place]) for place in places]
        if not first:
            return spans
        return [span for span in spans if span.category != STEP or span.begin >= spans[0].end]


class Recording:
    """One span, from entry to exit."""

    __slots__ = ("begin", "kind", "timeline")

    def __init__(self, timeline: Timeline, kind: tuple[str, str]) -> None:
        self.timeline = timeline
        self.kind = kind

    def __enter__(self) -> None:
        self.begin = self.timeline.clock.mark()

    def __exit__(self, *_: object) -> None:
        timeline = self.timeline
        timeline.close(self.kind, self.begin, timeline.clock.mark())


def summary(name: str, steps: list[tuple[int, int]]) -> dict[str, Any]:
    """A request's steps in figures. communication: the share of their time."""
    lengths, waits = zip(*steps, strict=True)
    return {
        "operation": name,
        "steps": len(steps),
        "seconds_per_step": statistics.median(lengths) / 1e9,
        "communication": sum(waits) / max(1, sum(lengths)),
    }


SILENT = Timeline(torch.device("cpu"), 0)
