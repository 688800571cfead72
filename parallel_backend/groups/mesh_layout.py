"""What each rank of a plan holds, told without a process group: for those who show a plan before it runs.

The engine's mesh and its cuts follow from the same: the order of AXES, JOINT_AXES, and `shard_sizes`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ..plan import ParallelPlan

# Axes that together split one thing: the batch, and the tokens of the sequence.
WEIGHT_AXES = ("pipefusion", "tp")
JOINT_AXES = {"batch": ("dp", "cfg"), "sequence": ("ring", "ulysses")}


@dataclass(frozen=True)
class RankPart:
    """A rank's part of the work.

    places: on every axis, the joint ones too, whose places count row by row.
    blocks: those of its stage; None where their number is not known.
    heads: those that it computes in attention; None where their number is not known.
    tokens: what it holds of the image's tokens outside of attention, one (start, stop) a patch, as fractions of all,
    which is exact to a token; its share of the text is the same.
    """

    rank: int
    places: dict[str, int]
    blocks: range | None
    heads: range | None
    tokens: tuple[tuple[float, float], ...]


def rank_parts(plan: ParallelPlan, heads: int | None = None, blocks: int | None = None) -> list[RankPart]:
    """The parts of all ranks, in order. heads, blocks: of a model that allows the plan, if one is known."""
    degrees = plan.degrees()
    parts = []
    for rank, indices in enumerate(itertools.product(*map(range, degrees.values()))):
        places = dict(zip(degrees, indices, strict=True))
        for name, axes in JOINT_AXES.items():
            places[name] = 0
            for axis in axes:
                places[name] = places[name] * degrees[axis] + places[axis]
        columns = plan.tp * plan.ulysses
        column = places["tp"] * plan.ulysses + places["ulysses"]
        parts.append(
            RankPart(
                rank,
                places,
                None if blocks is None else shard_range(blocks, plan.pipefusion, places["pipefusion"]),
                None if heads is None else shard_range(heads, columns, column),
                token_spans(plan, places["sequence"]),
            )
        )
    return parts


def same_weights(plan: ParallelPlan, other: ParallelPlan) -> bool:
    """Whether every rank holds the same weights under both plans."""
    if plan.world_size != other.world_size or any(getattr(plan, a) != getattr(other, a) for a in WEIGHT_AXES):
        return False
    pairs = zip(rank_parts(plan), rank_parts(other), strict=True)
    return all(one.places[axis] == two.places[axis] for one, two in pairs for axis in WEIGHT_AXES)


def token_spans(plan: ParallelPlan, place: int) -> tuple[tuple[float, float], ...]:
    """The share at this place of the sequence axis: each patch is cut over the whole axis, by itself."""
    shares = plan.ring * plan.ulysses
    pieces = plan.patch_count * shares
    starts = (patch * shares + place for patch in range(plan.patch_count))
    return tuple((start / pieces, (start + 1) / pieces) for start in starts)


def shard_sizes(size: int, degree: int) -> list[int]:
    """How a dim of this size is split over an axis of this degree."""
    return [size // degree + (index < size % degree) for index in range(degree)]


def shard_range(size: int, degree: int, index: int) -> range:
    """Which of a dim of this size are at this place of an axis of this degree."""
    sizes = shard_sizes(size, degree)
    start = sum(sizes[:index])
    return range(start, start + sizes[index])
