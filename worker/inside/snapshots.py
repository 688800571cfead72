"""What was sent to the ranks, to compare with later, see `encoder.py`."""

from __future__ import annotations

import types
from typing import NamedTuple

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
        try:  # identity is compared first
            return self.now == self.before and all(compat.version_of(tensor) == was for tensor, was in self.versions)
        except (RuntimeError, ValueError):  # replaced tensors: comparing them gives many truth values
            return False


class Version(NamedTuple):
    """A snapshot of a tensor. version: how often it was written to. copy: the values that were sent, for an inference
    tensor, which does not count its writes."""

    tensor: torch.Tensor
    version: int
    copy: torch.Tensor | None = None


def differs(before: str | Version, now: Encoded) -> bool:
    """Whether a value is another than before, see `kept`."""
    if not isinstance(before, Version) or not isinstance(now, Version):
        return isinstance(before, Version) or isinstance(now, Version) or before != key_of(now)
    is_same = before.tensor is now.tensor and before.version == now.version
    return not is_same or (before.copy is not None and not before.copy.equal(now.tensor))


def kept(slots: dict[str, tuple[Encoded, Encoded]]) -> dict[str, str | Version]:
    """Returns what to compare slots with later: the texts of their values, or versions. Weights are not copied: nobody
    writes to them in a sampling."""
    found: dict[str, str | Version] = {}
    for key, (_, value) in slots.items():
        found[key] = value if isinstance(value, Version) else key_of(value)
        if isinstance(value, Version) and value.tensor.is_inference() and type(value.tensor) is torch.Tensor:
            found[key] = value._replace(copy=value.tensor.clone())
    return found
