"""Weights whose numbers are in the ranks, as nodes find them in a module: torch reads the file's numbers when somebody
computes with them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from comfy.quant_ops import QuantizedTensor

from ...parallel_backend.compat import (
    tree_leaves,
    tree_map_only,
    version_of,
    without_function_modes,
    writes_to_arguments,
)
from ...parallel_backend.models.parallel_mlp import SPLITS, split_plain_rows
from ...worker.comfyui.quantised_rows import split_rows
from ..errors import Refused

TENSOR: Any = torch.Tensor
DATA = TENSOR.data  # a property that reads and writes weights without torch's checks
# What the stock loader's weights say of themselves while ComfyUI has not loaded them onto a device.
CPU = torch.device("cpu")
AT_REST = {TENSOR.device.__get__: CPU, TENSOR.is_cpu.__get__: True, TENSOR.is_meta.__get__: False}


@dataclass(eq=False)
class Weight:
    """A weight of a module, by its name. weights: the LocalWeights that have its numbers. changes: that ComfyUI's
    patcher makes of it. numbers: once somebody has read them. version: how often they were written to by then."""

    weights: Any
    name: str
    changes: Sequence[tuple]
    numbers: torch.Tensor | None = None
    version: int = 0

    def read(self) -> torch.Tensor:
        """Raises ModelFileError."""
        if self.numbers is None:
            numbers: torch.Tensor = self.weights.read(self.name, self.changes)
            self.numbers, self.version = numbers, version_of(numbers)
            self.weights.given.append(self)
        return self.numbers

    @property
    def is_written(self) -> bool:
        return self.numbers is not None and version_of(self.numbers) != self.version


class DeferredParameter(torch.nn.Parameter):
    """A weight whose numbers are in the ranks. It is on the meta device, so it has a shape and a dtype.

    Whatever else torch does with it, torch does with the file's numbers, writes included.
    """

    weight: Weight

    def read(self) -> torch.Tensor:
        return self.weight.read()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Writes the numbers, for nodes that save weights by torch."""
        return self.read().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self.read(), memo)

    def detach(self) -> torch.Tensor:
        """Returns an alias of the same weight."""
        with without_function_modes():
            found = super().detach().as_subclass(DeferredParameter)
        found.weight = self.weight
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in AT_REST:
            return AT_REST[func]
        first = args[0] if args and isinstance(args[0], cls) else None
        if first is not None and func == DATA.__get__:
            return first.detach()
        if first is not None and func == DATA.__set__:
            return first.set_data(with_numbers(args[1], None))
        name = getattr(func, "__name__", "")
        if first is not None and name in ("__get__", "__set__"):
            found = super().__torch_function__(func, types, args, kwargs)
            if not isinstance(found, torch.Tensor):  # such as its shape
                return found
        tensors = (each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor))
        others = [each for each in tensors if not isinstance(each, cls)]
        is_write = name.endswith("_") and not name.endswith("__") or name.startswith(("__i", "__set"))
        device = others[0].device if others and not is_write else None
        found = func(*with_numbers(args, device), **with_numbers(kwargs, device))
        return first if first is not None and found is first.read() else found

    def set_data(self, value: torch.Tensor) -> None:
        present = self.read()
        if value.dtype != present.dtype or not value.cpu().equal(present):  # else it is a move to another device
            present.data, self.weight.version = value, -1


class QuantisedParameter(QuantizedTensor):
    """A quantised weight whose numbers are in the ranks. It refuses to be written over."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if writes_to_arguments(func) and isinstance(args[0], cls):
            raise Refused(
                "The parallel model cannot take a node that writes into a quantised weight: its weights are in worker "
                "processes.",
                "Remove that node, or bypass Parallelize Model.",
            )
        return super().__torch_dispatch__(func, types, args, kwargs)


SPLITS.update({DeferredParameter: split_plain_rows, QuantisedParameter: split_rows})


def with_numbers(value: Any, device: torch.device | None) -> Any:
    """Replaces the deferred tensors in a call's arguments. device: where their numbers are needed."""
    return tree_map_only(DeferredParameter, lambda weight: weight.read().to(device), value)
