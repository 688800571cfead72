"""What was sent to the ranks, to compare with later, see `encoder.py`."""

from __future__ import annotations

import types
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..engine import compat
from .object_graph import Encoded, key_of


class Network:
    """A network as it was when it was described. functions, classes: that its objects name."""

    def __init__(self, module: torch.nn.Module, functions: list[types.FunctionType], classes: dict[type, None]) -> None:
        self.functions, self.classes = functions, classes
        parts = [vars(part) for part in module.modules()]
        self.now = [each for part in parts for each in (part, *part.values()) if isinstance(each, (dict, list, set))]
        self.before = [each.copy() for each in self.now]
        self.versions = [(tensor, compat.version_of(tensor)) for tensor in (*module.parameters(), *module.buffers())]

    def is_same(self) -> bool:
        is_same = are_equal(self.now, self.before)  # compares identity first
        return is_same and all(compat.version_of(tensor) == was for tensor, was in self.versions)


def are_equal(now: Any, before: Any) -> bool:
    """Whether two values are equal. Replaced tensors in them are not: comparing these gives many truth values."""
    try:
        return bool(now == before)
    except (RuntimeError, ValueError):
        return False


@dataclass(frozen=True, eq=False)
class Version:
    """A snapshot of a tensor. version: how often it was written to. copy: the values that were sent, for an inference
    tensor, which does not count its writes."""

    tensor: torch.Tensor
    version: int
    copy: torch.Tensor | None = None

    def __eq__(self, now: object) -> bool:
        is_same = isinstance(now, Version) and self.tensor is now.tensor and self.version == now.version
        return is_same and (self.copy is None or self.copy.equal(self.tensor))


def comparable(value: Encoded) -> str | Version:
    """Returns what of a slot's value is compared with what was kept of it: its text, or a version."""
    return value if isinstance(value, Version) else key_of(value)


def kept(slots: dict[str, tuple[Encoded, Encoded]]) -> dict[str, str | Version]:
    """Returns what to compare slots with later. Weights are not copied: nobody writes to them in a sampling."""
    found = {key: comparable(value) for key, (_, value) in slots.items()}
    for key, each in found.items():
        if isinstance(each, Version) and each.tensor.is_inference() and type(each.tensor) is torch.Tensor:
            found[key] = replace(each, copy=each.tensor.clone())
    return found
