"""Adds low-rank updates to loaded weights (LoRA, https://arxiv.org/abs/2106.09685), and removes them exactly.

A weight is always computed anew from the files. So nothing remains of earlier additions, and no second copy of the
weights is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from .loading import Check, ModelSource, go_on, loaded_dtype, read_tensors

Put = Callable[[str, torch.Tensor], None]

AT_ONCE = 16  # parameters read at a time, which bounds the memory


@dataclass(frozen=True)
class Addition:
    """Adds scale × up @ down to `count` rows of a parameter from `row` on; scale × up without a `down`.

    up, down: names of the tensors that come along, of shapes (rows, rank) and (rank, columns). The rows of up count
    from `up_row` on.
    """

    parameter: str
    row: int
    up_row: int
    count: int
    scale: float
    up: str
    down: str | None = None


@torch.no_grad()
def write_weights(
    model: torch.nn.Module,
    source: ModelSource,
    names: Collection[str],
    additions: list[Addition],
    tensors: Mapping[str, torch.Tensor],
    put: Put,
    check: Check = go_on,
) -> None:
    """Reads the named parameters that the model has from the files, adds their additions, and writes them. put: takes a
    parameter's name and value. Sums are in fp32, in the order given. Raises ModelFileError, or what `check` raises."""
    state = model.state_dict()
    wanted = [name for name in state if name in names]
    for first in range(0, len(wanted), AT_ONCE):
        shapes = {name: state[name].shape for name in wanted[first : first + AT_ONCE]}
        stored = read_tensors(source, shapes, check)
        for name in list(stored):
            check()
            device = state[name].device
            weight, dtype = stored.pop(name), loaded_dtype(model, name, source)
            added = [addition for addition in additions if addition.parameter == name]
            if added:
                weight = weight.to(device, torch.float32, copy=True)
            for addition in added:
                add(weight, addition, tensors)
            put(name, weight.to(device, dtype))


def add(weight: torch.Tensor, addition: Addition, tensors: Mapping[str, torch.Tensor]) -> None:
    """Adds one addition to a parameter, in place."""
    target = weight[addition.row : addition.row + addition.count]
    up = tensors[addition.up][addition.up_row : addition.up_row + addition.count].to(weight)
    delta = up if addition.down is None else up.flatten(1) @ tensors[addition.down].to(up).flatten(1)
    target.add_(delta.reshape(target.shape), alpha=addition.scale)
