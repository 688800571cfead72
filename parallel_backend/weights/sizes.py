"""What a model's weights take, and how much of them each rank keeps: known before there is a model on the ranks."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..groups.mesh_layout import stages_of
from ..models import adapter_for, spec_of
from ..plan import HOST, SHARED, ParallelPlan
from .loading import DTYPES, ModelSource
from .tensors import list_plain_tensors

NUMBER = re.compile(r"\d+$")  # of a block, in its name
FETCHED = (SHARED, HOST)
BUFFERS = 2  # in which blocks are that are fetched: one is computed with while the next comes


@dataclass(frozen=True)
class WeightSizes:
    """Bytes. rest: of what no block has, on every rank. blocks: of each block, in the order in which they run."""

    rest: int
    blocks: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        return self.rest + sum(self.blocks)

    def by_stage(self, plan: ParallelPlan) -> list[list[int]]:
        """What of each of its blocks a rank computes with under this plan, by its pipeline stage."""
        return [[self.blocks[place] for place in stage] for stage in stages_of(plan, self.blocks)]

    def count_kept_bytes(self, plan: ParallelPlan) -> list[int]:
        """What a rank keeps under this plan on its device, by its pipeline stage; weights=auto counts as whole."""
        if not self.blocks:
            return [self.total]
        return [self.rest + sum(stage) - count_freed_bytes(stage, plan) for stage in self.by_stage(plan)]

    def count_fetched_bytes(self, plan: ParallelPlan) -> int:
        """The bytes that come to a rank in a forward, of the stage that gets the most."""
        if not self.blocks or plan.weights not in FETCHED:
            return 0
        each = [sum(stage[place] for place in fetched_places(stage, plan)) for stage in self.by_stage(plan)]
        return max(each) - (max(each) // plan.replicas if plan.weights == SHARED else 0)


def fetched_places(blocks: Sequence[int], plan: ParallelPlan) -> list[int]:
    """Which of a rank's blocks are fetched under this plan: spread evenly, so that each fetch hides behind several."""
    if plan.weights not in FETCHED:
        return []
    count = min(len(blocks), plan.weight_blocks or len(blocks))
    return [place * len(blocks) // count for place in range(count)]


def count_freed_bytes(blocks: Sequence[int], plan: ParallelPlan) -> int:
    """What of these blocks' bytes a rank's device is spared: all that are fetched, but for its share of them and the
    buffers that they come to."""
    going = [blocks[place] for place in fetched_places(blocks, plan)]
    if not going:
        return 0
    share = sum(-(-size // plan.replicas) for size in going) if plan.weights == SHARED else 0
    return sum(going) - share - min(BUFFERS, len(going)) * max(going)


def sizes_by_name(sizes: Mapping[str, int], lists: Sequence[str]) -> WeightSizes:
    """From the bytes of each parameter. lists: the model's lists of blocks, by their paths."""
    blocks = Counter[tuple[int, int]]()
    rest = 0
    for name, size in sizes.items():
        if place := place_of(name, lists):
            blocks[place] += size
        else:
            rest += size
    return WeightSizes(rest, tuple(blocks[place] for place in sorted(blocks)))


def place_of(name: str, lists: Sequence[str]) -> tuple[int, int] | None:
    """Of a parameter in a block: the block's list, and its index there."""
    for position, path in enumerate(lists):
        index = name.removeprefix(f"{path}.").partition(".")[0]
        if name.startswith(f"{path}.") and (number := NUMBER.search(index)):
            return position, int(number[0])
    return None


def sizes_of_model(model: torch.nn.Module, dtypes: Mapping[str, torch.dtype] | None = None) -> WeightSizes:
    """Of a model, which may be on the meta device. dtypes: by name, of weights that it has in another yet."""
    spec = spec_of(type(model))
    sizes = bytes_by_name(model)
    sizes |= {name: model.get_parameter(name).numel() * dtype.itemsize for name, dtype in (dtypes or {}).items()}
    return sizes_by_name(sizes, spec.paths if spec else ())


def sizes_in_fp8(model: torch.nn.Module) -> WeightSizes | None:
    """Of one of ComfyUI's own models, if its matrices were in fp8, as those of fp8 files are; None where that would
    spare nothing."""
    sizes = bytes_by_name(model)
    larger = [name for name, tensor in model.named_parameters() if tensor.dim() > 1 and sizes[name] > tensor.numel()]
    return sizes_of_model(model, dict.fromkeys(larger, torch.float8_e4m3fn)) if larger else None


def bytes_by_name(model: torch.nn.Module) -> dict[str, int]:
    return {name: sum(part.nbytes for part in list_plain_tensors(tensor)) for name, tensor in model.named_parameters()}


def sizes_of_source(source: ModelSource) -> WeightSizes:
    """Of a model in files, whose headers alone are read, and nothing mapped: memory may be what there is none of.

    Raises OSError.
    """
    spec, sizes = adapter_for(source.model_class).spec, {}
    for path in source.files:
        with Path(path).open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        itemsize = DTYPES[source.dtype].itemsize
        sizes |= {name: math.prod(entry["shape"]) * itemsize for name, entry in header.items()}
    return sizes_by_name(sizes, spec.paths)
