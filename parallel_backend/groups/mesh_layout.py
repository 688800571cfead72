"""What each rank of a plan holds, told without a process group: for those who show a plan before it runs.

The engine's mesh and its cuts follow from the same: the axes' facts, and `shard_sizes`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..axes import BATCH_AXES, HEAD_AXES, JOINT_AXES, STAGE_AXES, WEIGHT_AXES, WEIGHTS, names_that
from ..plan import ParallelPlan

Share = tuple[float, float]


@dataclass(frozen=True)
class RankPart:
    """A rank's part of the work.

    places: on every axis, the joint ones too, whose places count row by row.
    share, stage: its share of the batch and its stage of the blocks, each as (which, of how many).
    blocks: those of its stage; None where their number is not known.
    heads: those that it computes in attention; None where their number is not known.
    head_share, weight_share: (start, stop) of what it has of the heads in attention and of each block's weights, as
    fractions; None where every rank has all.
    tokens: what it holds of the image's tokens outside of attention, one (start, stop) a patch, as fractions of all,
    which is exact to a token; its share of the text is the same.
    """

    rank: int
    places: dict[str, int]
    share: tuple[int, int]
    stage: tuple[int, int]
    blocks: range | None
    heads: range | None
    tokens: tuple[Share, ...]
    head_share: Share | None
    weight_share: Share | None


def rank_parts(plan: ParallelPlan, heads: int | None = None, blocks: int | None = None) -> list[RankPart]:
    """The parts of all ranks, in order. heads, blocks: of a model that allows the plan, if one is known."""
    degrees = plan.degrees()
    parts = []
    for rank, indices in enumerate(itertools.product(*map(range, degrees.values()))):
        places = dict(zip(degrees, indices, strict=True))
        places |= {name: joint_place(axes, degrees, places) for name, axes in JOINT_AXES.items()}
        batch, stage, heads_of, weights_of = (
            (joint_place(axes, degrees, places), plan.ways(axes))
            for axes in (BATCH_AXES, STAGE_AXES, HEAD_AXES, names_that(splits=WEIGHTS))
        )
        parts.append(
            RankPart(
                rank,
                places,
                batch,
                stage,
                None if blocks is None else shard_range(blocks, *stage),
                None if heads is None else shard_range(heads, *heads_of),
                token_spans(plan, places["sequence"]),
                fraction(*heads_of),
                fraction(*weights_of),
            )
        )
    return parts


def joint_place(axes: Iterable[str], degrees: Mapping[str, int], places: Mapping[str, int]) -> int:
    """A rank's place on these axes taken as one, the first the outermost."""
    place = 0
    for axis in axes:
        place = place * degrees[axis] + places[axis]
    return place


def fraction(place: int, ways: int) -> Share | None:
    """This part of so many, as (start, stop); None for the whole."""
    return (place / ways, (place + 1) / ways) if ways > 1 else None


def same_weights(plan: ParallelPlan, other: ParallelPlan) -> bool:
    """Whether every rank holds the same weights under both plans."""
    if plan.world_size != other.world_size or any(getattr(plan, a) != getattr(other, a) for a in WEIGHT_AXES):
        return False
    pairs = zip(rank_parts(plan), rank_parts(other), strict=True)
    return all(one.places[axis] == two.places[axis] for one, two in pairs for axis in WEIGHT_AXES)


def token_spans(plan: ParallelPlan, place: int) -> tuple[Share, ...]:
    """The share at this place of the sequence axis: each patch is cut over the whole axis, by itself."""
    shares = plan.token_ways
    pieces = plan.patch_count * shares
    starts = (patch * shares + place for patch in range(plan.patch_count))
    return tuple((start / pieces, (start + 1) / pieces) for start in starts)


def shard_sizes(size: int, degree: int) -> list[int]:
    """How a dim of this size is split over an axis of this degree."""
    return [size // degree + (index < size % degree) for index in range(degree)]


def shard_range(size: int, index: int, degree: int) -> range:
    """Which of a dim of this size are at this place of an axis of this degree."""
    sizes = shard_sizes(size, degree)
    start = sum(sizes[:index])
    return range(start, start + sizes[index])
