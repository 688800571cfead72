"""What each rank of a plan holds, told without a process group: for those who show a plan before it runs.

The engine's mesh and its cuts follow from the same: the axes' facts, and `shard_sizes`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
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


def rank_parts(plan: ParallelPlan, heads: int | None = None, blocks: Sequence[int] | None = None) -> list[RankPart]:
    """The parts of all ranks, in order. heads, blocks: of a model that allows the plan, if one is known: how many heads
    there are, and the bytes of each block."""
    degrees = plan.degrees()
    stages = None if blocks is None else stage_ranges(blocks, plan.ways(STAGE_AXES))
    parts = []
    for rank, indices in enumerate(itertools.product(*map(range, degrees.values()))):
        places = dict(zip(degrees, indices, strict=True))
        places |= {name: joint_place(axes, degrees, places) for name, axes in JOINT_AXES.items()}
        batch, stage, heads_of, weights_of = (
            (joint_place(axes, degrees, places), plan.ways(axes))
            for axes in (BATCH_AXES, STAGE_AXES, HEAD_AXES, names_that(splits=WEIGHTS))
        )
        own = None if heads is None else own_heads(heads, degrees, places)
        parts.append(
            RankPart(
                rank,
                places,
                batch,
                stage,
                None if stages is None else stages[stage[0]],
                own,
                token_spans(plan, places["sequence"]),
                (own.start / heads, own.stop / heads) if heads and own and heads_of[1] > 1 else fraction(*heads_of),
                fraction(*weights_of),
            )
        )
    return parts


def own_heads(heads: int, degrees: Mapping[str, int], places: Mapping[str, int]) -> range:
    """The heads at a rank's places: each axis shares out those that the one before left."""
    own = range(heads)
    for axis in HEAD_AXES:
        within = shard_range(len(own), places[axis], degrees[axis])
        own = own[within.start : within.stop]
    return own


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


def stage_ranges(sizes: Sequence[int], degree: int) -> list[range]:
    """The blocks of each pipeline stage, at least one: as even by bytes as can be, and the first, which is on ComfyUI's
    own device, the lightest where that can be. sizes: the bytes of each block, in order."""
    ends = [0, *itertools.accumulate(max(1, size) for size in sizes)]

    def weight(stage: range) -> int:
        return ends[stage.stop] - ends[stage.start]

    @functools.cache
    def evenest(start: int, stages: int) -> tuple[int, tuple[range, ...]]:
        """The blocks from `start` on in so many stages, with the least sum of squares of their bytes: both."""
        if stages == 1:
            last = range(start, len(sizes))
            return weight(last) ** 2, (last,)
        cuts = []
        for stop in range(start + 1, len(sizes) - stages + 2):
            rest, following = evenest(stop, stages - 1)
            cuts.append((weight(range(start, stop)) ** 2 + rest, (range(start, stop), *following)))
        return min(cuts, key=lambda cut: cut[0])

    if degree == 1:
        return [range(len(sizes))]
    found = []
    for stop in range(1, len(sizes) - degree + 2):
        first = range(stop)
        squares, others = evenest(stop, degree - 1)
        is_lightest = all(weight(first) <= weight(other) for other in others)
        found.append((not is_lightest, weight(first) ** 2 + squares, [first, *others]))
    return min(found, key=lambda cut: cut[:2])[2]


def shard_sizes(size: int, degree: int) -> list[int]:
    """How a dim of this size is split over an axis of this degree."""
    return [size // degree + (index < size % degree) for index in range(degree)]


def shard_range(size: int, index: int, degree: int) -> range:
    """Which of a dim of this size are at this place of an axis of this degree."""
    sizes = shard_sizes(size, degree)
    start = sum(sizes[:index])
    return range(start, start + sizes[index])
