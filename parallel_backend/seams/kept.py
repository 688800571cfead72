"""What a model keeps from call to call by its own code. Every rank keeps the same, so that all ranks take the same way
through the model.

A rank of another plan has had other rows, and so it has kept other values. The identity of a tensor depends on the
rank's own memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..models.spec import ModelSpec


class KeptValues:
    """names: of the arguments that the model knows by `is`. Ranks get each call's tensors anew, so `identify` replaces
    an equal one by the first. given: the different tensors that the model has got in this sampling."""

    def __init__(self, model: torch.nn.Module, spec: ModelSpec | None) -> None:
        self.model = model
        # A class that has changed may lack it. Then its tokens are not shared.
        self.method = spec.drops if spec and hasattr(model, spec.drops) else ""
        self.names = spec.unsplit if spec and spec.drops else ()
        self.given: list[torch.Tensor] = []

    def drop(self) -> None:
        """Makes the model drop what it has kept."""
        self.given.clear()
        if self.method:
            getattr(self.model, self.method)()

    def identify(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the model's arguments, with the first of equal tensors in place of each later one."""
        own = {name: kwargs[name] for name in self.names if isinstance(kwargs.get(name), torch.Tensor)}
        return {**kwargs, **{name: first_equal(self.given, value) for name, value in own.items()}}


def first_equal(known: list[torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Returns the first known tensor that equals this one. If there is none, adds this one."""
    found = next((each for each in known if each is value), None)  # comparing values makes the host wait for the device
    if found is None:
        found = next((each for each in known if is_equal(each, value)), None)
    if found is None:
        known.append(value)
        return value
    return found


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same form and values."""
    same = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return same and torch.equal(one, other)
