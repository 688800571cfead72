"""Tensor parallelism: the linear layers of the blocks are shared by heads and columns (https://arxiv.org/abs/1909.08053).

Which, and how, is diffusers' `_tp_plan`; torch's `parallelize_module` makes their parameters DTensors and puts the
all-reduce behind the second layer of each pair.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from ..compat import is_underway, tensor_parallel_plan, tensor_parallel_styles
from ..errors import PlanError
from ..groups.collectives import gather
from ..groups.mesh import Axis, Mesh
from ..groups.timeline import Timeline
from ..hooks import Hooks
from ..weights.loading import LocalPart, local_part, placed_like
from .layout import TOKEN_DIM
from .stages import StandIn, block_list


def shard_weights(model: torch.nn.Module, mesh: Mesh, hooks: Hooks) -> dict[str, LocalPart]:
    """Shares the local blocks' weights over the tp axis, and returns what this rank holds of each shared parameter.

    No values move between ranks: each keeps its own part of what it has, on the meta device too. The hooks' removal
    leaves the weights shared: see `join_weights`. Raises PlanError.
    """
    plan = local_plan(model)  # refuses a diffusers that is too old to have what is imported next
    from diffusers.hooks.tensor_parallel import resolve_tp_shard_specs

    axis = mesh["tp"]
    try:
        shards = resolve_tp_shard_specs(model, plan, axis.degree)
    except ValueError as error:
        raise PlanError(f"tp={axis.degree} does not work for {type(model).__name__}: {error}", "Use tp=1.") from error
    fillers = {name: EmptyFiller() for name in plan}
    for name, filler in fillers.items():
        hooks.before(model.get_submodule(name), filler.fill)
    with hooks.kept([model.get_submodule(name) for name in plan]):
        for name, style in tensor_parallel_styles(plan).items():  # torch 2.8 looks for paths at the wrong depths, too
            parallelize_module(model.get_submodule(name), mesh.tensor_mesh, style, src_data_rank=None)
    for name, filler in fillers.items():
        layer = model.get_submodule(name)
        hooks.after(layer, functools.partial(wait_for_sum, mesh.timeline))
        hooks.after(layer, filler.take_out)
    return {
        name: LocalPart(shard.dim, local_ranges(shard.block_sizes, axis.index, axis.degree))
        for name, shard in shards.items()
        if shard.dim is not None and shard.block_sizes is not None
    }


def join_weights(model: torch.nn.Module, parts: Mapping[str, LocalPart], axis: Axis) -> None:
    """Gives every rank of the tp axis the whole weights again, bit for bit; they call it together."""
    for name, held in shared_weights(model).items():
        local = local_part(held)
        whole = whole_of(local, parts[name], axis) if name in parts else local
        set_weight(model, name, whole, held.requires_grad)


def whole_of(local: torch.Tensor, part: LocalPart, axis: Axis) -> torch.Tensor:
    """A parameter from every rank's part of it: a share of each block into which the dim falls, as long on all."""
    shares = [stop - start for start, stop in part.ranges]
    raw = local.contiguous().view(torch.uint8)  # no group knows every dtype
    size = raw.shape[part.dim] * axis.degree
    by_rank = gather(raw, part.dim, size, axis).contiguous().view(local.dtype).chunk(axis.degree, part.dim)
    blocks = zip(*(held.split(shares, part.dim) for held in by_rank), strict=True)
    return torch.cat([share for block in blocks for share in block], part.dim)


def take_parts(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What this rank holds of the shared weights, in whose place are whole ones without values: for a new mesh."""
    held = shared_weights(model)
    for name, weight in held.items():
        set_weight(model, name, torch.empty(weight.shape, dtype=weight.dtype, device="meta"), weight.requires_grad)
    return {name: local_part(weight) for name, weight in held.items()}


def put_parts(model: torch.nn.Module, locals_: Mapping[str, torch.Tensor]) -> None:
    """Puts back what `take_parts` took, into weights that are shared as they were."""
    for name, local in locals_.items():
        held = model.get_parameter(name)
        set_weight(model, name, placed_like(held, local), held.requires_grad)


def shared_weights(model: torch.nn.Module) -> dict[str, DTensor]:
    return {name: weight for name, weight in model.named_parameters() if isinstance(weight, DTensor)}


def set_weight(model: torch.nn.Module, name: str, value: torch.Tensor, requires_grad: bool) -> None:
    owner, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(owner), own_name, torch.nn.Parameter(value.detach(), requires_grad))


def wait_for_sum(timeline: Timeline, _layer: torch.nn.Module, _args: tuple, out_BLD: Any) -> torch.Tensor:
    """Waits for the all-reduce behind a layer here, where it can be recorded, and not at the sum's first use."""
    if not is_underway(out_BLD):
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
    given = tensor_parallel_plan(model)
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
        for index, block in enumerate(block_list(model, blocks)):
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
