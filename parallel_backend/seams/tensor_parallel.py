"""Tensor parallelism: the linear layers of the blocks are shared by heads and columns (https://arxiv.org/abs/1909.08053).

Which, and how, is diffusers' `_tp_plan`; torch's `parallelize_module` makes their parameters DTensors and puts the
all-reduce behind the second layer of each pair.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor.parallel import parallelize_module

from ..errors import PlanError
from ..groups.mesh import Mesh
from ..groups.timeline import Timeline
from ..weights.loading import LocalPart
from .layout import TOKEN_DIM
from .stages import StandIn


def shard_weights(model: torch.nn.Module, mesh: Mesh) -> dict[str, LocalPart]:
    """Shares the local blocks' weights over the tp axis, and returns what this rank holds of each shared parameter.

    No values move between ranks: each keeps its own part of what it has, on the meta device too. Raises PlanError.
    """
    plan = local_plan(model)  # refuses a diffusers that is too old to have what is imported next
    from diffusers.hooks.tensor_parallel import _styles, resolve_tp_shard_specs

    axis = mesh["tp"]
    try:
        shards = resolve_tp_shard_specs(model, plan, axis.degree)
    except ValueError as error:
        raise PlanError(f"tp={axis.degree} does not work for {type(model).__name__}: {error}", "Use tp=1.") from error
    fillers = {name: EmptyFiller() for name in plan}
    for name, filler in fillers.items():
        model.get_submodule(name).register_forward_pre_hook(filler.fill)
    parallelize_module(model, mesh.device_mesh["tp"], _styles(plan), src_data_rank=None)
    for name, filler in fillers.items():
        layer = model.get_submodule(name)
        layer.register_forward_hook(functools.partial(wait_for_sum, mesh.timeline))
        layer.register_forward_hook(filler.take_out)
    return {
        name: LocalPart(shard.dim, local_ranges(shard.block_sizes, axis.index, axis.degree))
        for name, shard in shards.items()
        if shard.dim is not None
    }


def wait_for_sum(timeline: Timeline, _layer: torch.nn.Module, _args: tuple, out_BLD: torch.Tensor) -> torch.Tensor:
    """Waits for the all-reduce behind a layer here, where it can be recorded, and not at the sum's first use."""
    if not isinstance(out_BLD, AsyncCollectiveTensor):
        return out_BLD
    with timeline.communication("all_reduce"):
        return out_BLD.trigger_wait()


class EmptyFiller:
    """Gives a layer a token of zeros where it has none, and takes it out again: DTensors cannot be reshaped empty.

    Text is empty in all of PipeFusion's patches but the first.
    """

    def __init__(self) -> None:
        self.is_empty = False

    def fill(self, _layer: torch.nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        (x_BLD,) = args
        self.is_empty = x_BLD.shape[TOKEN_DIM] == 0
        return (F.pad(x_BLD, (0, 0, 0, 1)),) if self.is_empty else args

    def take_out(self, _layer: torch.nn.Module, _args: tuple, out_BLD: torch.Tensor) -> torch.Tensor:
        return out_BLD[:, :0] if self.is_empty else out_BLD


def local_plan(model: torch.nn.Module) -> dict[str, object]:
    """The model's `_tp_plan` for the blocks that are on this stage: module name to style."""
    given = getattr(model, "_tp_plan", None)
    if given is None:
        raise PlanError(
            f"This version of diffusers has no tensor-parallel plan for {type(model).__name__}.", "Update it."
        )
    plan = {}
    for pattern, style in given.items():
        blocks, wildcard, inside = pattern.partition(".*.")
        if not wildcard:
            plan[pattern] = style
            continue
        for index, block in enumerate(model.get_submodule(blocks)):
            if not isinstance(block, StandIn):
                plan[f"{blocks}.{index}.{inside}"] = style
    return plan


def local_ranges(sizes: list[int], index: int, degree: int) -> tuple[tuple[int, int], ...]:
    """A rank's share of each of the blocks, of these sizes, into which a dim falls. Sizes divide by the degree."""
    ranges, offset = [], 0
    for size in sizes:
        share = size // degree
        ranges.append((offset + index * share, offset + (index + 1) * share))
        offset += size
    return tuple(ranges)
