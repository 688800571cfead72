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
    """given: by argument, the different tensors that the model has got in this sampling. The model knows them by `is`.
    Ranks get each call's tensors anew, so `identify` replaces an equal one by the first."""

    def __init__(self, model: torch.nn.Module, spec: ModelSpec | None) -> None:
        self.model = model
        # A class that has changed may lack it. Then its tokens are not shared.
        self.method = spec.drops if spec and hasattr(model, spec.drops) else ""
        by_identity = spec.unsplit if spec and spec.drops else ()
        self.given: dict[str, list[torch.Tensor]] = {name: [] for name in by_identity}

    def drop(self) -> None:
        """Makes the model drop what it has kept."""
        for each in self.given.values():
            each.clear()
        if self.method:
            getattr(self.model, self.method)()

    def identify(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the model's arguments, with the first of equal tensors in place of each later one."""
        own = {name: kwargs[name] for name in self.given if isinstance(kwargs.get(name), torch.Tensor)}
        return {**kwargs, **{name: self.first_of(self.given[name], value) for name, value in own.items()}}

    def first_of(self, given: list[torch.Tensor], value: torch.Tensor) -> torch.Tensor:
        if any(each is value for each in given):  # comparing values makes the host wait for the device
            return value
        for each in given:
            if each.dtype == value.dtype and torch.equal(each, value):
                return each
        given.append(value)
        return value
