"""How many bytes operations read and write, as a GPU's memory would have it that nothing is cached before."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MAKES_ROOM = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty")


class Traffic(TorchDispatchMode):
    """While entered, counts the bytes that each operation has to read of its tensors and to write, and notes how many
    numbers the largest tensor of each dtype has that one makes."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.largest: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given, results = (tensors(value) for value in ((args, kwargs), made))
        if not func.is_view and func._schema.name not in MAKES_ROOM:
            into = {id(result) for result in results}
            in_place = func._schema.name.endswith("_") and func._schema.name != "aten::copy_"
            read = [tensor for tensor in given if in_place or id(tensor) not in into]
            self.total += sum(map(held_bytes, (*read, *results)))
            for result in results:
                self.largest[result.dtype] = max(self.largest.get(result.dtype, 0), result.numel())
        return made


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def held_bytes(tensor: torch.Tensor) -> int:
    """Of the numbers that it has, those that it repeats once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride) * tensor.element_size()
