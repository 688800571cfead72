"""How often a host waits for a labelled GPU, how much of its memory labelled tensors would take, and which of the
host's memory is pinned."""

from __future__ import annotations

import collections
import traceback
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from parallel_backend.weights.tensors import list_plain_tensors

PINNED: dict[int, int] = {}  # by address, its size


class Memory:
    """Bytes of the live tensors, each storage once. peak: the most that they were since `restart`."""

    def __init__(self, counts: bool = True) -> None:
        """counts: whether it does, as that takes a tenth of the time."""
        self.counts = counts
        self.tensors: collections.Counter[int] = collections.Counter()  # of a storage
        self.in_use = self.peak = 0

    def hold(self, tensor: torch.Tensor, held: torch.Tensor) -> Callable[[], object]:
        """Counts what holds a tensor's values, for as long as the tensor lives, or until what is returned is called."""
        if not self.counts:
            return lambda: None
        if hasattr(held, "__tensor_flatten__"):  # torch's result of a collective on DTensors, which wraps the plain one
            (held,) = list_plain_tensors(held)
        storage = held.untyped_storage()
        if not storage.nbytes():
            return lambda: None
        return self.count(tensor, storage.data_ptr(), storage.nbytes())

    def count(self, tensor: torch.Tensor, key: int, size: int) -> Callable[[], object]:
        self.tensors[key] += 1
        if self.tensors[key] == 1:
            self.allocate(key, size)
        counted = weakref.finalize(tensor, self.let_go, key, size)
        counted.atexit = False
        return counted

    def let_go(self, key: int, size: int) -> None:
        self.tensors[key] -= 1
        if not self.tensors[key]:
            del self.tensors[key]
            self.free(key, size)

    def allocate(self, _key: int, size: int) -> None:
        self.in_use += size
        self.peak = max(self.peak, self.in_use)

    def free(self, _key: int, size: int) -> None:
        self.in_use -= size

    def restart(self) -> None:
        self.peak = self.in_use


class Watch:
    """Between `begin` and `end`, how often the host would wait, by kind and place in the engine or in a model.

    inside: of a block, which `enter` and `leave` tell. memory: what tensors take. is_busy: whether the device has work
    that the host has not waited for. knows_pinned: whether what copies come from is pinned only where somebody has
    pinned it. observer: is told of each operation, and of each wait; see `support/streams`.
    """

    observer: Any = None
    knows_pinned = False

    def __init__(self, counts_memory: bool = True) -> None:
        self.is_on, self.is_busy, self.depth = False, False, 0
        self.memory = Memory(counts_memory)
        self.inside: collections.Counter[str] = collections.Counter()
        self.outside: collections.Counter[str] = collections.Counter()

    def begin(self) -> None:
        self.is_on = True

    def end(self) -> None:
        self.is_on = False

    def enter(self) -> None:
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1

    def synchronise(self, *_: object) -> None:
        """The host waits until the device has done its work, if it has any."""
        if self.is_busy:
            self.note("synchronize")

    def is_pinned(self, host: torch.Tensor) -> bool:
        """Whether copies from and to the host's memory need nobody to wait."""
        address = host.data_ptr()
        return not self.knows_pinned or any(start <= address < start + size for start, size in PINNED.items())

    def note(self, kind: str) -> None:
        self.is_busy = False
        if self.observer:
            self.observer.wait()
        if self.is_on:
            (self.inside if self.depth else self.outside)[f"{kind} at {place()}"] += 1


def counted(watch: Watch, blocks: Iterable[torch.nn.Module], once: Callable[[], Any]) -> Any:
    """What comes of a second run. What is counted is of this one, and what is inside of a block is told apart."""
    once()
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: watch.enter(), prepend=True)
        block.register_forward_hook(lambda *_: watch.leave(), always_call=True)  # a stage leaves by an exception
    watch.begin()
    result = once()
    watch.end()
    return result


def place() -> str:
    """The innermost lines of the engine, diffusers or ComfyUI."""
    found = []
    for entry in reversed(traceback.extract_stack()):
        if any(part in entry.filename for part in ("/parallel_backend/", "/diffusers/", "/comfy/", "/worker/")):
            found.append(f"{'/'.join(Path(entry.filename).parts[-2:])}:{entry.lineno}")
    return " < ".join(found[:3])


def pin(address: int, size: int, _flags: int) -> int:
    PINNED[address] = size
    return RUNTIME.cudaError.success


RUNTIME = SimpleNamespace(cudaHostRegister=pin, cudaHostUnregister=PINNED.pop, cudaError=SimpleNamespace(success=0))
