"""How much of a GPU's memory labelled tensors would take."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable

import torch

from parallel_backend.weights.tensors import list_plain_tensors


def nothing() -> None: ...


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
            return nothing
        if hasattr(held, "__tensor_flatten__"):  # torch's result of a collective on DTensors, which wraps the plain one
            (held,) = list_plain_tensors(held)
        storage = held.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not size:
            return nothing
        self.tensors[address] += 1
        if self.tensors[address] == 1:
            self.in_use += size
            self.peak = max(self.peak, self.in_use)
        counted = weakref.finalize(tensor, self.let_go, address, size)
        counted.atexit = False
        return counted

    def let_go(self, address: int, size: int) -> None:
        self.tensors[address] -= 1
        if not self.tensors[address]:
            del self.tensors[address]
            self.in_use -= size

    def restart(self) -> None:
        self.peak = self.in_use
