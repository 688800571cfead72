"""Model merges: weights of other models, which a rank reads from their files while it changes its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from .model import map_model
from .source import HostSource

PREFIX = "diffusion_model."  # the patcher's names are the module's with this prefix


@dataclass(frozen=True)
class MergedWeight:
    """A weight of another model, to be sent by its file and its patcher's name. changes: the other model's."""

    source: HostSource
    name: str
    changes: Sequence[tuple]


@dataclass(eq=False)
class MergedFile:
    """The file of another model. It is mapped while its weights are read."""

    source: HostSource
    model: Any = None
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)

    def map(self) -> None:
        """Raises ModelFileError."""
        if self.model is None:
            self.model, _, self.dtypes = map_model(self.source)

    def unmap(self) -> None:
        self.model = None

    def merge(self, name: str, changes: Sequence[tuple]) -> list[Any]:
        """Returns ComfyUI's list of a merge: a weight, with the function that makes numbers of it, and its changes.
        ComfyUI calls the function as it computes with the weight. Only then is the weight read."""
        return [(torch.empty(0), partial(self.read, name)), *changes]

    def read(self, name: str, like: torch.Tensor, **options: Any) -> torch.Tensor:
        """Returns the numbers of a weight, rounded to the dtype of the stock loader, on the device and in the dtype of
        another tensor. Raises ModelFileError."""
        from comfy.model_management import cast_to_device
        from comfy.model_patcher import get_key_weight

        self.map()
        weight, _, dequantise = get_key_weight(self.model, name)
        numbers = cast_to_device(weight, like.device, like.dtype, copy=True)
        numbers = dequantise(numbers, **options) if dequantise else numbers
        dtype = self.dtypes.get(name.removeprefix(PREFIX))
        return numbers.to(dtype).to(numbers.dtype) if dtype else numbers
