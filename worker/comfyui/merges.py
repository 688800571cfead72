"""Model merges: weights of other models, which a rank reads from their files while it changes its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    """The file of another model. It is mapped while its weights are read."""

    def __init__(self, source: HostSource) -> None:
        self.source = source
        self.model: Any = None
        self.dtypes: dict[str, torch.dtype] = {}

    def map(self) -> None:
        """Raises ModelFileError."""
        if self.model is None:
            self.model, _, self.dtypes = map_model(self.source)

    def unmap(self) -> None:
        self.model = None

    def read(self, name: str) -> tuple[torch.Tensor, Callable[..., torch.Tensor]]:
        """Returns what ComfyUI's `get_key_patches` does: a weight, and the function that makes numbers of it. Here this
        function also rounds them to the dtype of the stock loader. Raises ModelFileError."""
        from comfy.model_patcher import get_key_weight

        self.map()
        weight, _, dequantise = get_key_weight(self.model, name)
        dtype = self.dtypes.get(name.removeprefix(PREFIX))

        def convert(weight: torch.Tensor, **options: Any) -> torch.Tensor:
            numbers = dequantise(weight, **options) if dequantise else weight
            return numbers.to(dtype).to(numbers.dtype) if dtype else numbers

        return weight, convert


class MergedChanges(list):
    """ComfyUI's list of a merge: a weight of another model, then that model's changes of it. The weight is read when
    ComfyUI computes with it."""

    def __init__(self, file: MergedFile, name: str, changes: Sequence[tuple]) -> None:
        super().__init__([name, *changes])
        self.file = file

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return self.file.read(found) if place == 0 else found

    def __iter__(self) -> Iterator[Any]:
        yield self[0]
        yield from self[1:]
