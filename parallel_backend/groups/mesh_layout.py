"""Computes what each rank of a plan holds, without a process group: the editor shows a plan before it runs.

The engine's mesh uses the same rules: the facts of the axes, `axis_shares` and `split_sizes`.
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

    coordinates: its index on every axis; on the joint axes, indices count row by row.
    share, stage: its share of the batch and its pipeline stage, each as (index, count).
    rows: its share of the batch as fractions (start, stop), exact to a row.
    blocks: of its stage; None if their number is unknown.
    heads: that it computes in attention; None if their number is unknown.
    head_share: its heads in attention as fractions (start, stop); None if every rank has all.
    tokens: its image tokens outside of attention: for each patch (start, stop) as fractions of all tokens, exact to a
    token. Its share of the text is the same.
    """

    rank: int
    coordinates: dict[str, int]
    share: tuple[int, int]
    rows: Share
    stage: tuple[int, int]
    blocks: range | None
    heads: range | None
    tokens: tuple[Share, ...]
    head_share: Share | None


def rank_parts(plan: ParallelPlan, heads: int | None = None, blocks: Sequence[int] | None = None) -> list[RankPart]:
    """Returns the parts of all ranks, in order.

    heads, blocks: of the model, if it is known: the number of heads, and the bytes of each block. The model must allow
    the plan.
    """
    stages = None if blocks is None else stages_of(plan, blocks)
    parts, ways = [], plan.ways(BATCH_AXES)
    for rank, coordinates in enumerate(coordinates_of_ranks(plan)):
        batch, stage = coordinates["batch"], coordinates["pipefusion"]
        own = None if heads is None else own_heads(heads, plan, coordinates)
        parts.append(
            RankPart(
                rank,
                coordinates,
                (batch, ways),
                fraction(batch, ways, axis_shares(plan, BATCH_AXES, coordinates)),
                (stage, plan.pipefusion),
                None if stages is None else stages[stage],
                own,
                token_spans(plan, coordinates),
                head_share(heads, own, plan, coordinates),
            )
        )
    return parts


def coordinates_of_ranks(plan: ParallelPlan) -> list[dict[str, int]]:
    """Returns the coordinates of each rank: its index on every axis, including the joint ones."""
    degrees, found = plan.degrees(), []
    for indices in itertools.product(*map(range, degrees.values())):
        coordinates = dict(zip(degrees, indices, strict=True))
        found.append(coordinates | {name: joint_index(axes, degrees, coordinates) for name, axes in JOINT_AXES.items()})
    return found


def rows_along(plan: ParallelPlan, *names: str) -> list[list[int]]:
    """Returns the rows of ranks along these axes taken as one; the ranks of a row differ in no other axis."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for rank, coordinates in enumerate(coordinates_of_ranks(plan)):
        others = tuple(coordinates[axis] for axis in plan.degrees() if axis not in names)
        rows.setdefault(others, []).append(rank)
    return list(rows.values())


def axis_shares(plan: ParallelPlan, axes: Sequence[str], coordinates: Mapping[str, int]) -> tuple[float, ...]:
    """Returns the relative speed of each index on these axes taken as one, for a rank with these coordinates.

    Empty if all are alike. The speed of an index is the sum over its ranks. Axes that split weights sum over all groups
    that share the batch; other axes sum over this rank's group only. So all groups have the same stages, and all stages
    of a group the same tokens and heads.
    """
    if not plan.speeds:
        return ()
    fixed = [] if set(axes) <= set(STAGE_AXES) else [axis for axis in BATCH_AXES if axis not in axes]
    behind: list[list[float]] = [[] for _ in range(plan.ways(axes))]
    for speed, others in zip(plan.speeds, coordinates_of_ranks(plan), strict=True):
        if all(others[axis] == coordinates[axis] for axis in fixed):
            behind[joint_index(axes, plan.degrees(), others)].append(speed)
    shares = tuple(map(math.fsum, behind))
    return shares if len(set(shares)) > 1 else ()


def largest_share(plan: ParallelPlan, axes: Sequence[str]) -> float:
    """Returns the largest share that a rank gets of what these axes split, as a fraction."""
    found = [
        axis_shares(plan, axes, coordinates) for coordinates in (coordinates_of_ranks(plan) if plan.speeds else ())
    ]
    return max((max(shares) / sum(shares) for shares in found if shares), default=1 / plan.ways(axes))


def own_heads(heads: int, plan: ParallelPlan, coordinates: Mapping[str, int]) -> range:
    """Returns the heads that a rank at these coordinates computes in attention."""
    return shard_range(heads, coordinates["ulysses"], plan.ulysses, axis_shares(plan, ("ulysses",), coordinates))


def head_share(
    heads: int | None, own: range | None, plan: ParallelPlan, coordinates: Mapping[str, int]
) -> Share | None:
    """Returns a rank's heads as fractions; approximate if their number is unknown. None if it has all."""
    if plan.ulysses == 1:
        return None
    if heads and own is not None:
        return own.start / heads, own.stop / heads
    return fraction(coordinates["ulysses"], plan.ulysses, axis_shares(plan, ("ulysses",), coordinates))


def joint_index(axes: Iterable[str], degrees: Mapping[str, int], coordinates: Mapping[str, int]) -> int:
    """Returns a rank's index on these axes taken as one; the first axis is the outermost."""
    index = 0
    for axis in axes:
        index = index * degrees[axis] + coordinates[axis]
    return index


def largest_rows(plan: ParallelPlan, rows: int) -> int:
    """Returns the most rows of a batch that a group gets."""
    return max(shard_sizes(rows, plan.ways(BATCH_AXES), axis_shares(plan, BATCH_AXES, {})))


def fraction(index: int, ways: int, shares: Sequence[float] = ()) -> Share:
    """Returns one of `ways` parts as (start, stop). shares: relative sizes of the parts; equal if empty."""
    ends = [0, *itertools.accumulate(shares or (1,) * ways)]
    return ends[index] / ends[-1], ends[index + 1] / ends[-1]


def same_weights(plan: ParallelPlan, other: ParallelPlan) -> bool:
    """Whether every rank of the other plan holds the same weights under both."""
    if plan.world_size < other.world_size or any(getattr(plan, a) != getattr(other, a) for a in STAGE_AXES):
        return False
    if plan.pipefusion > 1 and stage_rule(plan) != stage_rule(other):
        return False
    pairs = zip(
        coordinates_of_ranks(plan), coordinates_of_ranks(other), strict=False
    )  # the other plan may have fewer ranks
    return all(one[axis] == two[axis] for one, two in pairs for axis in STAGE_AXES)


def token_spans(plan: ParallelPlan, coordinates: Mapping[str, int]) -> tuple[Share, ...]:
    """Returns the token spans at these coordinates: each patch is split over the whole sequence axis by itself."""
    start, stop = fraction(coordinates["sequence"], plan.token_ways, axis_shares(plan, TOKEN_AXES, coordinates))
    patches = plan.patch_count
    return tuple(((patch + start) / patches, (patch + stop) / patches) for patch in range(patches))


def stage_rule(plan: ParallelPlan) -> tuple[bool, tuple[float, ...]]:
    """Returns what decides the blocks of stages, beside the model: whether they go by time, and the stages' speeds."""
    shares = axis_shares(plan, STAGE_AXES, {})
    return plan.stages_by_time, tuple(share / max(shares) for share in shares)


def stages_of(plan: ParallelPlan, sizes: Sequence[int]) -> list[range]:
    """Returns the blocks of each pipeline stage of a plan. sizes: the bytes of each block, in order.

    By time, all blocks count alike: two-stream blocks have twice the bytes, but compute the same number of tokens, each
    with one stream's weights.
    """
    by_time, shares = stage_rule(plan)
    return stage_ranges([1] * len(sizes) if by_time else sizes, plan.pipefusion, shares)


def stage_ranges(sizes: Sequence[int], degree: int, shares: Sequence[float] = ()) -> list[range]:
    """Splits the blocks over pipeline stages, at least one each, as close to the stages' speeds as possible.

    Without speeds, as evenly as possible; the first stage is the lightest if possible, because
    its device may have other work. sizes: the bytes, or another weight, of each block, in order.
    """
    ends = [0, *itertools.accumulate(max(1, size) for size in sizes)]

    def weight(stage: range) -> int:
        return ends[stage.stop] - ends[stage.start]

    def cost(stage: range, index: int) -> float:
        """The sum of these costs is smallest when the stages' weights are in proportion to their speeds."""
        return weight(stage) ** 2 / shares[index] if shares else weight(stage) ** 2

    @functools.cache
    def evenest(start: int, stages: int) -> tuple[float, tuple[range, ...]]:
        """Splits the blocks from `start` on over the last `stages` stages. Returns the least cost, and the stages."""
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
def split_sizes(size: int, shares: tuple[float, ...]) -> tuple[int, ...]:
    """Splits a dim of this size in proportion to these shares, by the largest-remainder method.

    Each part is rounded down; the parts with the largest remainders get one more, the first ones among equals. The
    arithmetic is exact, so all ranks get the same result. For equal shares the result is that of `shard_sizes`.
    """
    exact = [Fraction(share) for share in shares]
    whole = sum(exact)
    parts = [size * share / whole for share in exact]
    sizes = [math.floor(part) for part in parts]
    most_cut = sorted(range(len(shares)), key=lambda index: sizes[index] - parts[index])
    for index in most_cut[: size - sum(sizes)]:
        sizes[index] += 1
    return tuple(sizes)


def shard_sizes(size: int, degree: int, shares: tuple[float, ...] = ()) -> list[int]:
    """Splits a dim of this size over an axis of this degree: evenly, or by shares as `split_sizes` does."""
    if shares:
        return [*split_sizes(size, shares)]
    return [size // degree + (index < size % degree) for index in range(degree)]


def shard_range(size: int, index: int, degree: int, shares: tuple[float, ...] = ()) -> range:
    """Returns the range of a dim of this size at one index of an axis of this degree, see `shard_sizes`."""
    sizes = shard_sizes(size, degree, shares)
    start = sum(sizes[:index])
    return range(start, start + sizes[index])
