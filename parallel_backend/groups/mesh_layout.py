"""Computes what each rank of a plan holds, without a process group: the editor shows a plan before it runs.

The engine's mesh uses the same rules: the facts of the axes, `axis_shares` and `shard_sizes`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter

from ..axes import BATCH_AXES, JOINT_AXES, MESH_AXES, STAGE_AXES
from ..plan import MEMORY, ParallelPlan

Share = tuple[float, float]  # of what is split, as fractions: start and stop
Cut = tuple[float, tuple[range, ...]]  # of blocks into stages, with its cost


@dataclass(frozen=True)
class RankPart:
    """A rank's part of the work.

    coordinates: its index on every axis; on the joint axes, indices count row by row.
    share, stage: its share of the batch and its pipeline stage, each as (index, count).
    rows: its share of the batch as fractions (start, stop), exact to a row.
    blocks: of its stage; None if their number is unknown.
    heads: that it computes in attention; None if their number is unknown.
    head_share: these as fractions (start, stop), approximate if their number is unknown; None if every rank has all.
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
    parts, ways, patches = [], plan.ways(BATCH_AXES), plan.patch_count
    for rank, coordinates in enumerate(coordinates_of_ranks(plan)):
        stage, own = coordinates["pipefusion"], None if heads is None else own_heads(heads, plan, coordinates)
        shared = own_share(plan, "ulysses", coordinates) if plan.ulysses > 1 else None
        start, stop = own_share(plan, "sequence", coordinates)
        parts.append(
            RankPart(
                rank,
                coordinates,
                share=(coordinates["batch"], ways),
                rows=own_share(plan, "batch", coordinates),
                stage=(stage, plan.pipefusion),
                blocks=None if stages is None else stages[stage],
                heads=own,
                # Each patch is split over the whole sequence axis by itself.
                tokens=tuple(((patch + start) / patches, (patch + stop) / patches) for patch in range(patches)),
                head_share=(own.start / heads, own.stop / heads) if shared and heads and own is not None else shared,
            )
        )
    return parts


def coordinates_of_ranks(plan: ParallelPlan) -> list[dict[str, int]]:
    """Returns the coordinates of each rank: its index on every axis, including the joint ones."""
    degrees, found = plan.degrees(), []
    for indices in itertools.product(*map(range, degrees.values())):
        own = dict(zip(degrees, indices, strict=True))

        def join(index: int, axis: str, own: dict[str, int] = own) -> int:
            return index * degrees[axis] + own[axis]

        found.append(own | {name: functools.reduce(join, axes, 0) for name, axes in JOINT_AXES.items()})
    return found


def rows_along(plan: ParallelPlan, *names: str) -> list[list[int]]:
    """Returns the rows of ranks along these axes taken as one; the ranks of a row differ in no other axis."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for rank, coordinates in enumerate(coordinates_of_ranks(plan)):
        others = tuple(coordinates[axis] for axis in plan.degrees() if axis not in names)
        rows.setdefault(others, []).append(rank)
    return list(rows.values())


def axis_shares(plan: ParallelPlan, name: str, coordinates: Mapping[str, int]) -> tuple[float, ...]:
    """Returns the relative speed of each index on an axis of the mesh, for a rank with these coordinates.

    Empty if all are alike. The speed of an index is the sum over its ranks. Axes that split weights sum over all groups
    that share the batch; other axes sum over this rank's group only. So all groups have the same stages, and all stages
    of a group the same tokens and heads.
    """
    if not plan.speeds:
        return ()
    fixed = [] if name in STAGE_AXES else [axis for axis in BATCH_AXES if axis not in MESH_AXES[name]]
    behind: list[list[float]] = [[] for _ in range(plan.ways(MESH_AXES[name]))]
    for speed, others in zip(plan.speeds, coordinates_of_ranks(plan), strict=True):
        if all(others[axis] == coordinates[axis] for axis in fixed):
            behind[others[name]].append(speed)
    shares = tuple(map(math.fsum, behind))
    return shares if len(set(shares)) > 1 else ()


def largest_share(plan: ParallelPlan, name: str) -> float:
    """Returns the largest share that a rank gets of what an axis splits, as a fraction."""
    found = (axis_shares(plan, name, own) for own in (coordinates_of_ranks(plan) if plan.speeds else ()))
    return max((max(shares) / sum(shares) for shares in found if shares), default=1 / plan.ways(MESH_AXES[name]))


def own_share(plan: ParallelPlan, name: str, coordinates: Mapping[str, int]) -> Share:
    """Returns what a rank at these coordinates gets of what an axis splits."""
    index, shares = coordinates[name], axis_shares(plan, name, coordinates)
    ends = [0, *itertools.accumulate(shares or (1,) * plan.ways(MESH_AXES[name]))]
    return ends[index] / ends[-1], ends[index + 1] / ends[-1]


def own_heads(heads: int, plan: ParallelPlan, coordinates: Mapping[str, int]) -> range:
    """Returns the heads that a rank at these coordinates computes in attention."""
    return shard_range(heads, coordinates["ulysses"], plan.ulysses, axis_shares(plan, "ulysses", coordinates))


def largest_rows(plan: ParallelPlan, rows: int) -> int:
    """Returns the most rows of a batch that a group gets."""
    return max(shard_sizes(rows, plan.ways(BATCH_AXES), axis_shares(plan, "batch", {})))


def same_weights(plan: ParallelPlan, other: ParallelPlan) -> bool:
    """Whether every rank of the other plan holds the same weights under both."""
    if plan.world_size < other.world_size or plan.pipefusion != other.pipefusion:
        return False
    if plan.pipefusion > 1 and stage_rule(plan) != stage_rule(other):
        return False
    stages, others = ([own["pipefusion"] for own in coordinates_of_ranks(each)] for each in (plan, other))
    return stages[: len(others)] == others


def stage_rule(plan: ParallelPlan) -> tuple[bool, tuple[float, ...]]:
    """Returns what decides the blocks of stages, beside the model: whether they go by time, and the stages' speeds."""
    shares = axis_shares(plan, "pipefusion", {})
    by_time = bool(plan.speeds) or plan.balance != MEMORY  # stages that share by speed are never balanced by memory
    return by_time, tuple(share / max(shares) for share in shares)


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

    def cuts(start: int, stages: int) -> Iterator[Cut]:
        """Cuts the blocks from `start` on into the last `stages` stages: in each way for the first of them, and in the
        best for the others. The sum of the costs is smallest when weights are in proportion to the stages' speeds."""
        for stop in range(start + 1, len(sizes) - stages + 2) if stages > 1 else [len(sizes)]:
            first, (rest, following) = range(start, stop), best(stop, stages - 1)
            cost = weight(first) ** 2 / shares[degree - stages] if shares else weight(first) ** 2
            yield cost + rest, (first, *following)

    @functools.cache
    def best(start: int, stages: int) -> Cut:
        return min(cuts(start, stages), key=itemgetter(0)) if stages else (0, ())

    def order(cut: Cut) -> tuple[bool, float]:
        cost, (first, *others) = cut
        return not shares and any(weight(first) > weight(other) for other in others), cost

    return [*min(cuts(0, degree), key=order)[1]]


@functools.lru_cache(maxsize=4096)
def split_sizes(size: int, shares: tuple[float, ...]) -> tuple[int, ...]:
    """Splits a dim of this size in proportion to these shares, by the largest-remainder method.

    Each part is rounded down; the parts with the largest remainders get one more, the first ones among equals. The
    arithmetic is exact, so all ranks get the same result.
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
    """Splits a dim of this size over an axis of this degree: evenly, or by shares."""
    return [*split_sizes(size, shares or (1.0,) * degree)]


def shard_range(size: int, index: int, degree: int, shares: tuple[float, ...] = ()) -> range:
    """Returns the range of a dim of this size at one index of an axis of this degree, see `shard_sizes`."""
    sizes = shard_sizes(size, degree, shares)
    start = sum(sizes[:index])
    return range(start, start + sizes[index])
