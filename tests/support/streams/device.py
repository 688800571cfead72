"""Labelled tensors in simulated streams: what an operation reads and writes is told to a `Simulator`.

`on_streams` is entered within `on_gpu`. torch's functions for streams, events, pinned memory and collectives then move
the simulator's clocks. A collective runs on a stream of its group, as torch has it run over NCCL.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tests.support.labelled import tensors as labelled
from tests.support.labelled.tensors import COPIES, Labelled, tensors_in
from tests.support.labelled.watch import Memory, Watch

from .exchanges import Exchanges
from .simulator import HOST, Block, Clock, Part, Simulator

MAKES_ROOM = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::set_")
ROOMS = ("/parallel_backend/", "/worker/", "/demo/")
OTHERS = ("/diffusers/", "/comfy/")


class Blocks(Memory):
    """Tells the simulator of storages: the first tensor of one allocates it, the last frees it."""

    def __init__(self, simulator: Simulator) -> None:
        super().__init__()
        self.simulator = simulator

    def hold(self, tensor: torch.Tensor, held: torch.Tensor) -> Callable[[], object]:
        storage = held.untyped_storage()
        return self.count(tensor, storage._cdata, storage.nbytes())

    def allocate(self, key: int, size: int) -> None:
        if size:
            self.simulator.allocate(key, size)

    def free(self, key: int, _size: int) -> None:
        self.simulator.free(key)


class Storage:
    """The storage of a labelled tensor, which may be emptied and filled again in place."""

    def __init__(self, held: torch.UntypedStorage, simulator: Simulator) -> None:
        self.held, self.simulator = held, simulator
        self.device = labelled.GPU

    def nbytes(self) -> int:
        return self.held.nbytes()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def resize_(self, size: int) -> None:
        self.simulator.free(self.held._cdata)
        self.held.resize_(size)
        if size:
            self.simulator.allocate(self.held._cdata, size)


class Stream:
    def __init__(self, simulator: Simulator, name: str) -> None:
        self.simulator, self.name = simulator, name

    def wait_stream(self, other: Stream) -> None:
        self.simulator.wait(self.name, self.simulator.record(other.name))

    def wait_event(self, event: Event) -> None:
        self.simulator.wait(self.name, event.clock)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self.simulator)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.simulator.wait(HOST, self.simulator.record(self.name))


class Event(labelled.Event):
    """An event that has passed as soon as somebody asks, which then knows that it has."""

    def __init__(self, simulator: Simulator, **_: Any) -> None:
        self.simulator = simulator
        self.clock: Clock = {}

    def record(self, stream: Stream | None = None) -> None:
        super().record()
        self.clock = self.simulator.record(stream.name if stream else self.simulator.current)

    def wait(self, stream: Stream | None = None) -> None:
        self.simulator.wait(stream.name if stream else self.simulator.current, self.clock)

    def synchronize(self) -> None:
        self.simulator.wait(HOST, self.clock)

    def query(self) -> bool:
        self.synchronize()
        return True


class Observer:
    """Tells the simulator of each operation."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.forms: set[tuple] = set()  # of operations that have run

    def operation(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """An operation that has a labelled tensor, or makes one."""
        name = func._schema.name
        if name.startswith("c10d"):
            return
        if name in MAKES_ROOM:
            return
        form = (name, *((each.shape, each.dtype) for each in tensors_in((*args, *kwargs.values()))))
        if form not in self.forms:  # another shape may have another kernel
            self.forms.add(form)
            self.simulator.loaded = len(self.simulator.kernels)
        read, written, is_view = signature_of(func)
        if is_view:
            return
        names = {place: args[place] for place in range(len(args))} | kwargs
        given = [tensor for key in read if key in names for tensor in tensors_in((names[key],))]
        changed = [tensor for key in written if key in names for tensor in tensors_in((names[key],))]
        known = {id(tensor) for tensor in (*given, *changed)}
        made = [tensor for tensor in tensors_in((result,)) if id(tensor) not in known]
        simulator, what = self.simulator, f"{name.removeprefix('aten::')} at {place()}"
        on_device = any(isinstance(each, Labelled) for each in (*given, *changed, *made))
        stream = simulator.current if on_device else HOST
        simulator.launch(stream)
        simulator.touch(stream, self.parts(given), self.parts((*changed, *made)), what)
        if name in COPIES and on_device and self.waits_for_copy(given, (*changed, *made), args, kwargs):
            self.wait()

    def waits_for_copy(self, given: Any, results: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Whether the host waits for a copy. It does not if told so, unless memory that is not pinned is written."""
        source, target = given[0], results[0]
        if isinstance(source, Labelled) == isinstance(target, Labelled):
            return False
        is_free = kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True)
        return not is_free or not (isinstance(target, Labelled) or self.pinned_part(target))

    def on_host(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """An operation on the CPU, which may touch pinned memory."""
        if self.simulator.pinned and any(map(self.pinned_part, tensors_in((*args, *kwargs.values())))):
            self.operation(func, args, kwargs, result)

    def wait(self) -> None:
        """The host waits for the current stream."""
        self.simulator.wait(HOST, self.simulator.record(self.simulator.current))

    def parts(self, tensors: Any) -> list[Part]:
        found = (self.part(tensor) if isinstance(tensor, Labelled) else self.pinned_part(tensor) for tensor in tensors)
        return [part for part in found if part]

    def part(self, tensor: Labelled) -> Part | None:
        held = tensor.held
        block = self.simulator.blocks.get(held.untyped_storage()._cdata)
        return Part(block, *span(held)) if block and held.numel() else None

    def pinned_part(self, tensor: torch.Tensor) -> Part | None:
        if not self.simulator.pinned or tensor.device.type != "cpu" or not tensor.numel():
            return None
        first, last = span(tensor)
        base = tensor.untyped_storage().data_ptr()
        for address, block in list(self.simulator.pinned.items()):  # which a thread adds to
            if address < base + last and base + first < address + block.size:
                return Part(block, base + first - address, base + last - address)
        return None


@functools.cache
def signature_of(func: Any) -> tuple[list[int | str], list[int | str], bool]:
    """Which arguments an operation reads, and which it writes, by place and name; and whether it only makes views."""
    read: list[int | str] = []
    written: list[int | str] = []
    for place, argument in enumerate(func._schema.arguments):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        (written if is_written else read).extend([argument.name] if argument.kwarg_only else [place, argument.name])
    returned = func._schema.returns
    return read, written, not written and bool(returned) and all(each.alias_info for each in returned)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage from a tensor's first to its last."""
    size, first = tensor.element_size(), tensor.storage_offset() * tensor.element_size()
    extent = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (extent + 1) * size


def place() -> str:
    """The innermost line of the product, or else of a model's code."""
    frame, other = sys._getframe(1), ""
    while frame:
        name = frame.f_code.co_filename
        if is_product(name):
            return f"{'/'.join(name.split('/')[-2:])}:{frame.f_lineno}" + (f" for {other}" if other else "")
        if not other and any(room in name for room in OTHERS):
            other = f"{name.split('/')[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return other or "a test"


def is_product(file: str) -> bool:
    return any(room in file for room in ROOMS) and "/tests/" not in file


def called_from(codes: Sequence[types.CodeType]) -> bool:
    """Whether the innermost functions of the product that run now are these, the innermost first."""
    frame, wanted = sys._getframe(1), list(codes)
    while frame and wanted:
        if is_product(frame.f_code.co_filename) and frame.f_code is not wanted.pop(0):
            return False
        frame = frame.f_back
    return not wanted


@contextlib.contextmanager
def on_streams(watch: Watch, without: Sequence[types.CodeType] = ()) -> Iterator[Simulator]:
    """While entered, within `on_gpu`, the simulator is told of all work. Tensors made before are unknown to it.

    without: of functions of the product, the innermost first, whose waits the simulator is not told of."""
    simulator = Simulator()
    if without:
        simulator.forgets = functools.partial(called_from, without)
    observer = Observer(simulator)
    exchanges = Exchanges(simulator, observer.parts, place)

    @contextlib.contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        before, simulator.current = simulator.current, stream.name
        try:
            yield
        finally:
            simulator.current = before

    def pin(address: int, size: int, _flags: int) -> int:
        simulator.pinned[address] = Block(size, HOST)
        return 0

    runtime = SimpleNamespace(
        cudaHostRegister=pin, cudaHostUnregister=simulator.unpin, cudaError=SimpleNamespace(success=0)
    )
    with contextlib.ExitStack() as stack:
        for name, value in (
            ("current_stream", lambda *_: Stream(simulator, simulator.current)),
            ("Stream", lambda *_, **__: Stream(simulator, simulator.new_stream("side stream"))),
            ("stream", entered), ("Event", functools.partial(Event, simulator)),
            ("synchronize", lambda *_: simulator.synchronise()), ("cudart", lambda: runtime),
            ("empty_cache", simulator.synchronise),
        ):  # fmt: skip
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.object(watch, "memory", Blocks(simulator)))
        stack.enter_context(patch.object(watch, "observer", observer))
        for owner, name, value in (
            (Labelled, "untyped_storage", lambda own: Storage(own.held.untyped_storage(), simulator)),
            (Labelled, "set_", lambda own, storage: Labelled(own.held.set_(storage.held))),
        ):
            stack.enter_context(patch.object(owner, name, value, create=True))
        exchanges.enter(stack)
        yield simulator
