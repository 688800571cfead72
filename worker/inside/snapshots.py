"""What was sent to the ranks, to compare with later, see `encoder.py`."""

from __future__ import annotations

import types
from typing import NamedTuple

import torch

from ..engine import compat
from .object_graph import Encoded, key_of


class Network:
    """A network as it was when it was described. names: of its objects. functions, classes: that these name."""

    def __init__(
        self, module: torch.nn.Module, names: set[str], functions: list[types.FunctionType], classes: dict[type, None]
    ) -> None:
        self.names, self.functions, self.classes = names, functions, classes
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

    def kept(self) -> Version:
        """Returns what to compare with later. Weights are not copied: nobody writes to them in a sampling."""
        is_weight = isinstance(self.tensor, torch.nn.Parameter)
        return self if is_weight or not self.tensor.is_inference() else self._replace(copy=self.tensor.clone())

    def differs(self, now: Version) -> bool:
        is_same = self.tensor is now.tensor and self.version == now.version
        return not is_same or (self.copy is not None and not self.copy.equal(now.tensor))


def differs(before: str | Version, now: Encoded) -> bool:
    """Whether a value is another than before, see `kept`."""
    return before.differs(now) if isinstance(before, Version) else before != key_of(now)


def kept(slots: dict[str, tuple[Encoded, Encoded]]) -> dict[str, str | Version]:
    """Returns what to compare slots with later: their values' versions or texts."""
    return {key: value.kept() if isinstance(value, Version) else key_of(value) for key, (_, value) in slots.items()}
