"""Counts the bytes of a model's weights, and how many each rank keeps, before any rank has the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..groups.mesh_layout import stages_of
from ..models import spec_of
from ..plan import HOST, SHARED, ParallelPlan
from .tensors import list_plain_tensors

NUMBER = re.compile(r"\d+$")  # the block's number in its name
FETCHED = (SHARED, HOST)
BUFFERS = 2  # for fetched blocks: one block computes while the next arrives


@dataclass(frozen=True)
class WeightSizes:
    """Sizes in bytes. rest: weights outside of blocks; every rank has them. blocks: each block's size, in the order in
    which the blocks run."""

    rest: int
    blocks: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        return self.rest + sum(self.blocks)

    def by_stage(self, plan: ParallelPlan) -> list[list[int]]:
        """Returns, for each pipeline stage of the plan, the sizes of its blocks."""
        return [[self.blocks[number] for number in stage] for stage in stages_of(plan, self.blocks)]

    def count_resident_bytes(self, plan: ParallelPlan) -> list[int]:
        """Returns, for each pipeline stage, the bytes that a rank keeps on its device. weights=auto counts as whole."""
        if not self.blocks:
            return [self.total] * plan.pipefusion
        return [self.rest + sum(stage) - count_freed_bytes(stage, plan) for stage in self.by_stage(plan)]

    def count_fetched_bytes(self, plan: ParallelPlan) -> int:
        """Returns the bytes that a rank fetches in a forward, for the stage that fetches the most."""
        if not self.blocks or plan.weights not in FETCHED:
            return 0
        each = [sum(stage[number] for number in fetched_blocks(stage, plan)) for stage in self.by_stage(plan)]
        return max(each) - (max(each) // plan.replicas if plan.weights == SHARED else 0)


def fetched_blocks(blocks: Sequence[int], plan: ParallelPlan) -> list[int]:
    """Lists which of a rank's blocks are fetched. They are spread evenly, so that each fetch hides behind several
    blocks."""
    if plan.weights not in FETCHED:
        return []
    count = min(len(blocks), plan.weight_blocks or len(blocks))
    return [number * len(blocks) // count for number in range(count)]


def count_freed_bytes(blocks: Sequence[int], plan: ParallelPlan) -> int:
    """Returns the device bytes that fetching saves a rank: the fetched blocks, less its own shard of them and the
    buffers."""
    going = [blocks[number] for number in fetched_blocks(blocks, plan)]
    if not going:
        return 0
    share = sum(-(-size // plan.replicas) for size in going) if plan.weights == SHARED else 0
    return sum(going) - share - min(BUFFERS, len(going)) * max(going)


def sizes_by_block(sizes: Mapping[str, int], paths: Iterable[str]) -> WeightSizes:
    """Groups the bytes of parameters by block. paths: of the model's blocks."""
    blocks = [sum(size for name, size in sizes.items() if name.startswith(f"{path}.")) for path in paths]
    return WeightSizes(sum(sizes.values()) - sum(blocks), tuple(blocks))


def blocks_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Returns the model's blocks whose weights can be fetched, by path, in the order in which they run."""
    spec, modules = spec_of(type(model)), dict(model.named_modules())
    return {
        f"{path}.{name}": block
        for path in (spec.paths(model) if spec else ())
        if path in modules
        for name, block in modules[path].named_children()
        if NUMBER.search(name)
    }


def weight_sizes_of(model: torch.nn.Module, dtypes: Mapping[str, torch.dtype] | None = None) -> WeightSizes:
    """Returns the sizes of a model, which may be on the meta device. dtypes: by name, the dtype that a weight will
    have."""
    sizes = bytes_by_name(model)
    sizes |= {name: model.get_parameter(name).numel() * dtype.itemsize for name, dtype in (dtypes or {}).items()}
    return sizes_by_block(sizes, blocks_of(model))


def sizes_in_fp8(model: torch.nn.Module) -> WeightSizes | None:
    """Returns the sizes of a model with its matrices in fp8, as in fp8 files. Returns None if that saves nothing."""
    sizes = bytes_by_name(model)
    larger = [name for name, tensor in model.named_parameters() if tensor.dim() > 1 and sizes[name] > tensor.numel()]
    return weight_sizes_of(model, dict.fromkeys(larger, torch.float8_e4m3fn)) if larger else None


def bytes_by_name(model: torch.nn.Module) -> dict[str, int]:
    return {name: sum(part.nbytes for part in list_plain_tensors(tensor)) for name, tensor in model.named_parameters()}
