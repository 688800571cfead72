"""Counts the bytes of a model's weights, and how many each rank keeps, before any rank has the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
        return [[self.blocks[place] for place in stage] for stage in stages_of(plan, self.blocks)]

    def count_kept_bytes(self, plan: ParallelPlan) -> list[int]:
        """Returns, for each pipeline stage, the bytes that a rank keeps on its device. weights=auto counts as whole."""
        if not self.blocks:
            return [self.total] * plan.pipefusion
        return [self.rest + sum(stage) - count_freed_bytes(stage, plan) for stage in self.by_stage(plan)]

    def count_fetched_bytes(self, plan: ParallelPlan) -> int:
        """Returns the bytes that a rank fetches in a forward, for the stage that fetches the most."""
        if not self.blocks or plan.weights not in FETCHED:
            return 0
        each = [sum(stage[place] for place in fetched_places(stage, plan)) for stage in self.by_stage(plan)]
        return max(each) - (max(each) // plan.replicas if plan.weights == SHARED else 0)


def fetched_places(blocks: Sequence[int], plan: ParallelPlan) -> list[int]:
    """Lists which of a rank's blocks are fetched. They are spread evenly, so that each fetch hides behind several
    blocks."""
    if plan.weights not in FETCHED:
        return []
    count = min(len(blocks), plan.weight_blocks or len(blocks))
    return [place * len(blocks) // count for place in range(count)]


def count_freed_bytes(blocks: Sequence[int], plan: ParallelPlan) -> int:
    """Returns the device bytes that fetching saves a rank: the fetched blocks, less its own shard of them and the
    buffers."""
    going = [blocks[place] for place in fetched_places(blocks, plan)]
    if not going:
        return 0
    share = sum(-(-size // plan.replicas) for size in going) if plan.weights == SHARED else 0
    return sum(going) - share - min(BUFFERS, len(going)) * max(going)


def sizes_by_name(sizes: Mapping[str, int], lists: Sequence[str]) -> WeightSizes:
    """Groups the bytes of parameters by block. lists: the paths of the model's block lists."""
    blocks = Counter[tuple[int, int]]()
    rest = 0
    for name, size in sizes.items():
        if place := place_of(name, lists):
            blocks[place] += size
        else:
            rest += size
    return WeightSizes(rest, tuple(blocks[place] for place in sorted(blocks)))


def place_of(name: str, lists: Sequence[str]) -> tuple[int, int] | None:
    """Returns the block list and the index of a parameter's block; None outside of blocks."""
    for position, path in enumerate(lists):
        index = name.removeprefix(f"{path}.").partition(".")[0]
        if name.startswith(f"{path}.") and (number := NUMBER.search(index)):
            return position, int(number[0])
    return None


def sizes_of_model(model: torch.nn.Module, dtypes: Mapping[str, torch.dtype] | None = None) -> WeightSizes:
    """Returns the sizes of a model, which may be on the meta device. dtypes: by name, the dtype that a weight will
    have."""
    spec = spec_of(type(model))
    sizes = bytes_by_name(model)
    sizes |= {name: model.get_parameter(name).numel() * dtype.itemsize for name, dtype in (dtypes or {}).items()}
    return sizes_by_name(sizes, spec.paths(model) if spec else ())


def sizes_in_fp8(model: torch.nn.Module) -> WeightSizes | None:
    """Returns the sizes of a model with its matrices in fp8, as in fp8 files. Returns None if that saves nothing."""
    sizes = bytes_by_name(model)
    larger = [name for name, tensor in model.named_parameters() if tensor.dim() > 1 and sizes[name] > tensor.numel()]
    return sizes_of_model(model, dict.fromkeys(larger, torch.float8_e4m3fn)) if larger else None


def bytes_by_name(model: torch.nn.Module) -> dict[str, int]:
    return {name: sum(part.nbytes for part in list_plain_tensors(tensor)) for name, tensor in model.named_parameters()}
