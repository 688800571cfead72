"""Model merges: weights of other models, which a rank reads from their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


class MergedFile:
    """The file of another model, whose pages are mapped as long as weights of it are in use."""

    def __init__(self, source: HostSource) -> None:
        """Raises ModelFileError."""
        self.source = source  # which keeps a copy of another machine's file
        self.model, _, self.dtypes = map_model(source)

    def read(self, name: str) -> tuple[torch.Tensor, Callable[..., torch.Tensor]]:
        """Returns what ComfyUI's `get_key_patches` does: a weight, and the function that makes numbers of it. Here this
        function also rounds them to the dtype of the stock loader."""
        from comfy.model_patcher import get_key_weight

        weight, _, dequantise = get_key_weight(self.model, name)
        dtype = self.dtypes.get(name.removeprefix(PREFIX))

        def convert(weight: torch.Tensor, **options: Any) -> torch.Tensor:
            numbers = dequantise(weight, **options) if dequantise else weight
            return numbers.to(dtype).to(numbers.dtype) if dtype else numbers

        return weight, convert
