"""Tensors that are computed when they are read, or earlier, while ranks exchange tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..compat import tree_map_only

CHANNEL_DIM = -1


class Deferred:
    """A tensor that is computed when torch's functions or its own methods read it."""

    def __init__(self, compute: Callable[[], torch.Tensor]) -> None:
        self.compute: Callable[[], torch.Tensor] | None = compute
        self.computed: torch.Tensor | None = None

    def get(self) -> torch.Tensor:
        if self.computed is None:
            assert self.compute
            self.computed, self.compute = self.compute(), None  # releases the inputs
        return self.computed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.split:
            return args[0].split(*args[1:], **(kwargs or {}))
        args, kwargs = tree_map_only(Deferred, Deferred.get, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.get(), name)


def call_method(name: str) -> Callable[..., torch.Tensor]:
    return lambda deferred, *args: getattr(deferred.get(), name)(*args)


for operator in ("getitem", "neg", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv"):
    setattr(Deferred, f"__{operator}__", call_method(f"__{operator}__"))


class DeferredTail(Deferred):
    """A layer's output whose first rows are computed and whose other rows are deferred. first: (…, C)."""

    def __init__(self, first: torch.Tensor, others: Deferred, rows: int) -> None:
        """rows: of the layer."""
        super().__init__(lambda: torch.cat((first, others.get()), CHANNEL_DIM))
        self.first = first
        self.others = others
        self.shape = torch.Size((*first.shape[:-1], rows))

    def reshape(self, *sizes: Any) -> torch.Tensor | Deferred:
        """Reshapes as torch does. Other shapes of the same rows compute nothing: layers with quantised inputs multiply
        in two dims."""
        shape = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        if not shape or shape[CHANNEL_DIM] != self.shape[CHANNEL_DIM]:
            return self.get().reshape(shape)
        before, rows, others = shape[:CHANNEL_DIM], self.shape[CHANNEL_DIM], self.others
        first = self.first.reshape(*before, self.first.shape[CHANNEL_DIM])
        rest = Deferred(lambda: others.get().reshape(*first.shape[:CHANNEL_DIM], -1))
        return DeferredTail(first, rest, rows)

    def split(self, sizes: Sequence[int] | int, dim: int = 0) -> Sequence[torch.Tensor | Deferred]:
        """Splits as torch does. A split between the computed and the deferred rows computes nothing."""
        own, last = self.first.shape[-1], len(self.shape) - 1
        if dim in (CHANNEL_DIM, last) and sizes in ([own, self.shape[-1] - own], (own, self.shape[-1] - own)):
            return self.first, self.others
        return self.get().split(sizes, dim)
