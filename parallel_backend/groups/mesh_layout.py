"""What each rank of a plan holds, told without a process group: for those who show a plan before it runs.

The engine's mesh and its cuts follow from the same: the axes' facts, `axis_shares` and `split_sizes`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..axes import BATCH_AXES, JOINT_AXES, STAGE_AXES, TOKEN_AXES
from ..plan import ParallelPlan

Share = tuple[float, float]


@dataclass(frozen=True)
class RankPart:
    """A rank's part of the work.

    places: on every axis, the joint ones too, whose places count row by row.
    share, stage: its share of the batch and its stage of the blocks, each as (which, of how many).
    rows: its share of the batch as (start, stop), fractions, which is exact to a row.
    blocks: those of its stage; None where their number is not known.
    heads: those that it computes in attention; None where their number is not known.
    head_share: (start, stop) of what it has of the heads in attention, as fractions; None where every rank has all.
    tokens: what it holds of the image's tokens outside of attention, one (start, stop) a patch, as fractions of all,
    which is exact to a token; its share of the text is the same.
    """

    rank: int
    places: dict[str, int]
    share: tuple[int, int]
    rows: Share
    stage: tuple[int, int]
    blocks: range | None
    heads: range | None
    tokens: tuple[Share, ...]
    head_share: Share | None


def rank_parts(plan: ParallelPlan, heads: int | None = None, blocks: Sequence[int] | None = None) -> list[RankPart]:
    """The parts of all ranks, in order. heads, blocks: of a model that allows the plan, if one is known: how many heads
    there are, and the bytes of each block."""
    stages = None if blocks is None else stages_of(plan, blocks)
    parts = []
    for rank, places in enumerate(places_of_ranks(plan)):
        batch, stage = (
            (joint_place(axes, plan.degrees(), places), plan.ways(axes)) for axes in (BATCH_AXES, STAGE_AXES)
        )
        own = None if heads is None else own_heads(heads, plan, places)
        parts.append(
            RankPart(
                rank,
                places,
                batch,
                fraction(places["batch"], plan.ways(BATCH_AXES), axis_shares(plan, BATCH_AXES, places)),
                stage,
                None if stages is None else stages[stage[0]],
                own,
                token_spans(plan, places),
                head_share(heads, own, plan, places),
            )
        )
    return parts


def places_of_ranks(plan: ParallelPlan) -> list[dict[str, int]]:
    """The places of each rank on every axis, the joint ones too."""
    degrees, found = plan.degrees(), []
    for indices in itertools.product(*map(range, degrees.values())):
        places = dict(zip(degrees, indices, strict=True))
        found.append(places | {name: joint_place(axes, degrees, places) for name, axes in JOINT_AXES.items()})
    return found


def axis_shares(plan: ParallelPlan, axes: Sequence[str], places: Mapping[str, int]) -> tuple[float, ...]:
    """The relative speed of each place on these axes taken as one, as a rank with these places has it; empty where all
    are alike.

    It is that of all ranks there together, of every group that shares the batch where they hold weights, else of this
    rank's group alone: so stages are the same in all groups, and tokens and heads in all stages of one.
    """
    if not plan.speeds:
        return ()
    fixed = [] if set(axes) <= set(STAGE_AXES) else [axis for axis in BATCH_AXES if axis not in axes]
    behind: list[list[float]] = [[] for _ in range(plan.ways(axes))]
    for speed, others in zip(plan.speeds, places_of_ranks(plan), strict=True):
        if all(others[axis] == places[axis] for axis in fixed):
            behind[joint_place(axes, plan.degrees(), others)].append(speed)
    shares = tuple(map(math.fsum, behind))
    return shares if len(set(shares)) > 1 else ()


def largest_share(plan: ParallelPlan, axes: Sequence[str]) -> float:
    """What the rank that has the most gets of what these axes share, as a fraction."""
    found = [axis_shares(plan, axes, places) for places in (places_of_ranks(plan) if plan.speeds else ())]
    return max((max(shares) / sum(shares) for shares in found if shares), default=1 / plan.ways(axes))


def own_heads(heads: int, plan: ParallelPlan, places: Mapping[str, int]) -> range:
    """The heads that a rank at these places computes in attention."""
    shares, place = axis_shares(plan, ("ulysses",), places), places["ulysses"]
    sizes = split_sizes(heads, shares) if shares else shard_sizes(heads, plan.ulysses)
    start = sum(sizes[:place])
    return range(start, start + sizes[place])


def head_share(heads: int | None, own: range | None, plan: ParallelPlan, places: Mapping[str, int]) -> Share | None:
    """What a rank has of the heads, as fractions; of heads whose number is not known, about. None where it has all."""
    if plan.ulysses == 1:
        return None
    if heads and own is not None:
        return own.start / heads, own.stop / heads
    return fraction(places["ulysses"], plan.ulysses, axis_shares(plan, ("ulysses",), places))


def joint_place(axes: Iterable[str], degrees: Mapping[str, int], places: Mapping[str, int]) -> int:
    """A rank's place on these axes taken as one, the first the outermost."""
    place = 0
    for axis in axes:
        place = place * degrees[axis] + places[axis]
    return place


def largest_rows(plan: ParallelPlan, rows: int) -> int:
    """How many of a batch's rows the group has that has the most."""
    shares = axis_shares(plan, BATCH_AXES, {})
    return max(split_sizes(rows, shares) if shares else shard_sizes(rows, plan.ways(BATCH_AXES)))


def fraction(place: int, ways: int, shares: Sequence[float] = ()) -> Share:
    """This part of so many, as (start, stop). shares: relative sizes of the parts; alike where there are none."""
    ends = [0, *itertools.accumulate(shares or (1,) * ways)]
    return ends[place] / ends[-1], ends[place + 1] / ends[-1]


def same_weights(plan: ParallelPlan, other: ParallelPlan) -> bool:
    """Whether every rank of the other plan holds the same weights under both."""
    if plan.world_size < other.world_size or any(getattr(plan, a) != getattr(other, a) for a in STAGE_AXES):
        return False
    if plan.pipefusion > 1 and stage_rule(plan) != stage_rule(other):
        return False
    pairs = zip(places_of_ranks(plan), places_of_ranks(other), strict=False)  # it may have fewer ranks
    return all(one[axis] == two[axis] for one, two in pairs for axis in STAGE_AXES)


def token_spans(plan: ParallelPlan, places: Mapping[str, int]) -> tuple[Share, ...]:
    """The share at these places of the sequence axis: each patch is cut over the whole axis, by itself."""
    start, stop = fraction(places["sequence"], plan.token_ways, axis_shares(plan, TOKEN_AXES, places))
    patches = plan.patch_count
    return tuple(((patch + start) / patches, (patch + stop) / patches) for patch in range(patches))


def stage_rule(plan: ParallelPlan) -> tuple[bool, tuple[float, ...]]:
    """What the blocks of stages follow from, beside the model: whether they go by time, and the speed of each stage."""
    shares = axis_shares(plan, STAGE_AXES, {})
    return plan.stages_by_time, tuple(share / max(shares) for share in shares)


def stages_of(plan: ParallelPlan, sizes: Sequence[int]) -> list[range]:
    """The blocks of each pipeline stage under a plan. sizes: the bytes of each block, in order.

    By time, all blocks count alike: those of two streams have twice the bytes, and as many tokens to compute.
    """
    by_time, shares = stage_rule(plan)
    return stage_ranges([1] * len(sizes) if by_time else sizes, plan.pipefusion, shares)


def stage_ranges(sizes: Sequence[int], degree: int, shares: Sequence[float] = ()) -> list[range]:
    """The blocks of each pipeline stage, at least one: in proportion to the stages' speeds as far as can be.

    Without speeds as even as can be, and the first, which is on ComfyUI's own device, the lightest where that can be.
    sizes: the bytes of each block, in order, or what else is shared out.
    """
    ends = [0, *itertools.accumulate(max(1, size) for size in sizes)]

    def weight(stage: range) -> int:
        return ends[stage.stop] - ends[stage.start]

    def cost(stage: range, place: int) -> float:
        """Whose sum over the stages is the least where what they have is in proportion to their speeds."""
        return weight(stage) ** 2 / shares[place] if shares else weight(stage) ** 2

    @functools.cache
    def evenest(start: int, stages: int) -> tuple[float, tuple[range, ...]]:
        """The blocks from `start` on in so many stages, the last ones, at the least cost: both."""
        if stages == 1:
            last = range(start, len(sizes))
            return cost(last, degree - 1), (last,)
        cuts = []
        for stop in range(start + 1, len(sizes) - stages + 2):
            rest, following = evenest(stop, stages - 1)
            cuts.append((cost(range(start, stop), degree - stages) + rest, (range(start, stop), *following)))
        return min(cuts, key=lambda cut: cut[0])

    if degree == 1:
        return [range(len(sizes))]
    if shares:
        return [*evenest(0, degree)[1]]
    found = []
    for stop in range(1, len(sizes) - degree + 2):
        first = range(stop)
        squares, others = evenest(stop, degree - 1)
        is_lightest = all(weight(first) <= weight(other) for other in others)
        found.append((not is_lightest, weight(first) ** 2 + squares, [first, *others]))
    return min(found, key=lambda cut: cut[:2])[2]


@functools.lru_cache(maxsize=4096)
def split_sizes(size: int, shares: tuple[float, ...], least: int = 0) -> tuple[int, ...]:
    """How a dim of this size is split in proportion to these shares: each has its part rounded down, and those whose
    part was cut the most have one more, the first of them where they are even (the largest-remainder method).

    least: that no share comes to less, where there are so many. Exact arithmetic: all ranks come to the same. Of equal
    shares, `shard_sizes`.
    """
    exact = [Fraction(share) for share in shares]
    whole = sum(exact)
    parts = [size * share / whole for share in exact]
    sizes = [math.floor(part) for part in parts]
    most_cut = sorted(range(len(shares)), key=lambda place: sizes[place] - parts[place])
    for place in most_cut[: size - sum(sizes)]:
        sizes[place] += 1
    if size >= least * len(shares):
        while min(sizes) < least:
            sizes[sizes.index(min(sizes))] += 1
            sizes[sizes.index(max(sizes))] -= 1
    return tuple(sizes)


def shard_sizes(size: int, degree: int) -> list[int]:
    """How a dim of this size is split over an axis of this degree."""
    return [size // degree + (index < size % degree) for index in range(degree)]


def shard_range(size: int, index: int, degree: int) -> range:
    """Which of a dim of this size are at this place of an axis of this degree."""
    sizes = shard_sizes(size, degree)
    start = sum(sizes[:index])
    return range(start, start + sizes[index])
