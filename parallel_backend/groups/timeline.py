"""Records where a rank's time goes: spans of requests, steps and communication, in memory of a limited size.

Communication is the time that a rank waits. An exchange that overlaps computation counts only from the moment when its
result is needed. The rest of a step is computation.
"""

from __future__ import annotations

import time
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
    """One thing that the rank did. begin, end: nanoseconds of the machine's monotonic clock."""

    name: str
    category: str
    begin: int
    end: int


class HostClock:
    """The clock of ranks on the CPU: a mark is the time itself."""

    mark = staticmethod(time.monotonic_ns)

    anchor = staticmethod(time.monotonic_ns)

    def wait(self) -> None: ...

    def is_past(self, mark: int) -> bool:
        return True

    def read(self, mark: int) -> int:
        return mark

    def release(self, *marks: int) -> None: ...


class DeviceClock:
    """The clock of ranks on a GPU, whose host runs ahead: a mark is an event in the current stream.

    Collectives run in other streams, and the current stream waits for them. Events before and after the wait measure
    the part that computation does not hide. torch gives the distance between two events in float milliseconds. We
    measure from an anchor event whose host time is known, and move the anchor along to stay exact.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.free: list[torch.Event] = []

    def mark(self) -> torch.Event:
        event = self.free.pop() if self.free else new_event(self.device)
        event.record()
        return event

    def anchor(self) -> int:
        """Sets the anchor, and returns its time on the host. Waits for the GPU, which is idle when a request begins."""
        self.anchored = self.mark()
        self.anchored.synchronize()
        self.anchored_at = time.monotonic_ns()
        return self.anchored_at

    def wait(self) -> None:
        """Waits until all marks have passed."""
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
        """Takes back marks that have been read, for reuse."""
        self.free.extend(mark for mark in marks if mark is not self.anchored)


class Timeline:
    """Records one rank's spans. New spans replace the oldest. Only one thread may use it.

    moves: how many spans were entered or left so far, and how often a request without spans has come further; another
    thread may read it.

    A step's span lies within a request's span. Communication spans do not overlap. Each lies within a step's span;
    after the last step, only within the request's.
    device: of the rank. capacity: how many spans are kept; 0 records nothing.
    """

    def __init__(self, device: torch.device, capacity: int = CAPACITY) -> None:
        self.clock = DeviceClock(device) if is_accelerator(device) and capacity else HostClock()
        self.capacity = capacity
        self.kept: deque[tuple[str, str, int, int]] = deque(maxlen=max(1, capacity))
        self.moves = 0
        self.pending: deque[tuple[tuple[str, str], Any, Any]] = deque(maxlen=max(1, capacity))
        self.inside: list[tuple[int, int]] = []  # communication since the last step: begin and length
        self.waited = 0
        self.steps: list[tuple[int, int]] = []  # of the last request: nanoseconds of each step and its communication
        self.recordings: dict[str, AbstractContextManager] = {}  # of communication, by name

    def communication(self, name: str) -> AbstractContextManager:
        """While entered, the rank waits for others. A block has much communication, so one object records all of a
        name."""
        if name not in self.recordings:
            self.recordings[name] = self._record((name, COMMUNICATION))
        return self.recordings[name]

    def step(self, name: str) -> AbstractContextManager:
        """While entered, the rank is in a step: of a loop, or a single forward."""
        return self._record((name, STEP))

    def _record(self, kind: tuple[str, str]) -> AbstractContextManager:
        return Recording(self, kind) if self.capacity else UNRECORDED

    @contextmanager
    def request(self, name: str) -> Iterator[None]:
        """While entered, the rank serves a request."""
        begin = self.clock.anchor()
        self.steps = []
        try:
            yield
            self.clock.wait()  # not after an error: the GPU may then wait for a rank that never comes
        finally:
            self.read_marks()
            self.pending.clear()
            self.kept.append((name, REQUEST, begin, time.monotonic_ns()))

    def read_marks(self) -> None:
        """Reads the marks that have passed, without waiting."""
        clock, pending = self.clock, self.pending
        while pending and clock.is_past(pending[0][2]):
            kind, first, last = pending.popleft()
            begin, end = clock.read(first), clock.read(last)
            clock.release(first, last)
            self.kept.append((*kind, begin, end))
            if kind[1] == COMMUNICATION:
                self.inside.append((begin, end - begin))
                self.waited += end - begin
            elif kind[1] == STEP:
                self.steps.append((end - begin, sum([length for start, length in self.inside if start >= begin])))
                self.inside.clear()

    def communicated(self) -> float:
        """Returns the seconds of all communication so far, as far as they have been read."""
        self.read_marks()
        return self.waited / 1e9

    def spans(self) -> list[Span]:
        """Returns the kept spans, ordered by end. Leaves out steps whose communication may no longer be complete."""
        spans = [Span(*each) for each in self.kept]
        if len(spans) < self.capacity:
            return spans
        return [span for span in spans if span.category != STEP or span.begin >= spans[0].end]


class Recording:
    """Spans of a kind, each from entry to exit."""

    __slots__ = ("begin", "kind", "timeline")

    def __init__(self, timeline: Timeline, kind: tuple[str, str]) -> None:
        self.timeline = timeline
        self.kind = kind

    def __enter__(self) -> None:
        self.timeline.moves += 1
        self.begin = self.timeline.clock.mark()

    def __exit__(self, *_: object) -> None:
        timeline = self.timeline
        timeline.moves += 1
        timeline.pending.append((self.kind, self.begin, timeline.clock.mark()))
        if self.kind[1] == STEP:
            timeline.read_marks()


SILENT = Timeline(torch.device("cpu"), 0)
