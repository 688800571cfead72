"""A simulator of a GPU's streams: it knows which work is ordered after which, and reports accesses that nothing orders.

Each stream has a vector clock: for each stream, how much of its work is certain to have ended before what the stream
does next. Work, waits and events move the clocks as CUDA does. The host is a stream, too: what it launches comes after
what it has done. A caching allocator gives a freed block at once to later work of the stream that it was allocated on,
unless another stream was recorded on it: then it waits until the host knows that this stream's work has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

HOST, MAIN = "host", "main"
Clock = dict[str, int]


class Access(NamedTuple):
    """One piece of work that touched the bytes from start to stop of a block. time: of its stream."""

    stream: str
    time: int
    start: int
    stop: int
    writes: bool
    what: str

    def __str__(self) -> str:
        return f"{self.what} {'writes' if self.writes else 'reads'} on {self.stream}"


@dataclass
class Block:
    """Allocated memory. stream: that it was allocated on; HOST for pinned memory. recorded: the streams that the
    allocator waits for before it gives the block to others. accesses: those that later ones have to be ordered after.
    """

    size: int
    stream: str
    recorded: set[str] = field(default_factory=set)
    accesses: list[Access] = field(default_factory=list)


class Part(NamedTuple):
    """Bytes of a block."""

    block: Block
    start: int
    stop: int


@dataclass
class Kernel:
    """A collective, or messages launched as one.

    parts: of messages, [kind, the other rank's global number]. clock: what had ended before it could begin. what: its
    name and place in the code. loaded: how many kernels were launched before the last operation that was the first of
    its name and shapes. If that had to load its kernel, all of them had ended."""

    kind: str
    group: str
    ranks: list[int]
    stream: str
    time: int
    clock: Clock
    what: str
    parts: list[tuple[str, int]] = field(default_factory=list)
    loaded: int = 0


class Simulator:
    """findings: what is not ordered, each once. kernels: in the order of their launch. in_use: bytes of blocks. left:
    of freed ones that the allocator cannot give away yet. peak, taken: the most bytes in use, and in use or left."""

    def __init__(self) -> None:
        self.clocks: dict[str, Clock] = {HOST: {}, MAIN: {}}
        self.current = MAIN
        self.blocks: dict[int, Block] = {}
        self.pinned: dict[int, Block] = {}  # by address
        self.findings: dict[tuple[str, ...], str] = {}
        self.kernels: list[Kernel] = []
        self.count = 0  # of accesses
        self.loaded = 0  # see `Kernel`
        self.in_use = self.left = self.peak = self.taken = 0
        self.waiting: list[tuple[int, Clock]] = []  # of each block that is left: its size, and what it waits for
        self.forgets: Callable[[], bool] = lambda: False  # whether the wait that is under way is taken away

    def new_stream(self, kind: str) -> str:
        name = f"{kind} {sum(each.startswith(kind) for each in self.clocks) + 1}"
        self.clocks[name] = {}
        return name

    def launch(self, stream: str, after: Mapping[str, int] | None = None) -> None:
        """Begins a piece of a stream's work, which comes after what the host has done, and after an event."""
        clock = self.clocks.setdefault(stream, {})
        join(clock, after or {})
        if stream != HOST:
            join(clock, self.clocks[HOST])
        clock[stream] = clock.get(stream, 0) + 1

    def record(self, stream: str) -> Clock:
        """What has ended when the stream's work so far has, as an event tells it."""
        clock = dict(self.clocks.setdefault(stream, {}))
        join(clock, self.clocks[HOST])
        return clock

    def wait(self, stream: str, event: Mapping[str, int]) -> None:
        """The stream's later work, or the host, waits for an event."""
        if not self.forgets():
            join(self.clocks.setdefault(stream, {}), event)

    def synchronise(self) -> None:
        """The host waits for all streams."""
        for clock in list(self.clocks.values()):
            self.wait(HOST, clock)

    def touch(self, stream: str, reads: Iterable[Part], writes: Iterable[Part], what: str) -> None:
        """A launched piece of work reads and writes these bytes."""
        clock = self.clocks[stream]
        for writing, parts in ((False, reads), (True, writes)):
            for block, start, stop in parts:
                self.count += 1
                own = Access(stream, clock[stream], start, stop, writing, what)
                kept = []
                for each in block.accesses:
                    apart = each.stop <= start or stop <= each.start
                    is_ordered = each.stream == stream or clock.get(each.stream, 0) >= each.time
                    if not apart and not is_ordered and (writing or each.writes):
                        self.find(each, own)
                    is_within = start <= each.start and each.stop <= stop
                    if not (is_within and is_ordered and (writing or (not each.writes and each.stream == stream))):
                        kept.append(each)
                kept.append(own)
                block.accesses = kept

    def find(self, before: Access, after: Access) -> None:
        told = f"{after}, and nothing orders it after: {before} (bytes {before.start} to {before.stop})"
        self.findings.setdefault((before.what, after.what), told)

    def allocate(self, key: int, size: int) -> None:
        known = self.clocks[HOST]
        self.waiting = [each for each in self.waiting if any(known.get(name, 0) < at for name, at in each[1].items())]
        self.left = sum(size for size, _ in self.waiting)
        self.blocks[key] = Block(size, self.current)
        self.in_use += size
        self.peak, self.taken = max(self.peak, self.in_use), max(self.taken, self.in_use + self.left)

    def free(self, key: int) -> None:
        """Gives a block back. It may be another tensor's at once, in work of its own stream."""
        block = self.blocks.pop(key, None)
        if block:
            self.in_use -= block.size
            if block.recorded:
                self.waiting.append((block.size, {name: self.clocks[name].get(name, 0) for name in block.recorded}))
                self.left += block.size
            self.check_reuse(block)

    def check_reuse(self, block: Block) -> None:
        clock = self.record(block.stream)
        for each in block.accesses:
            if each.stream in (block.stream, *block.recorded) or clock.get(each.stream, 0) >= each.time:
                continue
            told = f"memory of {block.stream} is free for other tensors, and may still be used: {each}"
            self.findings.setdefault(("free", each.what), told)

    def unpin(self, address: int) -> None:
        if block := self.pinned.pop(address, None):
            self.check_reuse(block)

    def meet_on_host(self) -> None:
        """The host tells other ranks that it has come here, so they may read what it shares with them."""
        for block in list(self.pinned.values()):
            for each in block.accesses:
                if each.writes and self.clocks[HOST].get(each.stream, 0) < each.time and each.stream != HOST:
                    told = f"other ranks may read shared memory, and nobody has waited for: {each}"
                    self.findings.setdefault(("meet", each.what), told)

    def start(self, kind: str, group: str, ranks: list[int], stream: str, what: str, parts: Any = ()) -> None:
        """Notes a launched collective."""
        clock = dict(self.clocks[stream])
        self.kernels.append(Kernel(kind, group, ranks, stream, clock[stream], clock, what, list(parts), self.loaded))


def join(clock: Clock, other: Mapping[str, int]) -> None:
    for stream, time in other.items():
        if time > clock.get(stream, 0):
            clock[stream] = time
