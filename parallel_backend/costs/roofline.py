"""Estimates by a roofline model how long a step of a plan takes, and what memory a rank needs.

A rank's own work takes its FLOPs at the device's rate for products and for attention, plus its bytes at the rate of the
device's memory, plus a fixed time for each operation. All ranks of a group wait for the slowest of them. Each axis then
adds what it sends, less what travels while the ranks compute. The result orders plans; as seconds, it is *about* right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..axes import BATCH_AXES
from ..groups.mesh_layout import (
    axis_shares,
    coordinates_of_ranks,
    largest_rows,
    own_heads,
    own_share,
    shard_sizes,
    stages_of,
)
from ..plan import EXCHANGE_BLOCK, EXCHANGE_PARTS, HOST, SHARED, ParallelPlan
from ..weights.sizes import WeightSizes
from .forward import Cost, ForwardCost, Work
from .machine import Machine, Speed
from .memory import rank_bytes, stale_cache_factor

MERGED = 6  # in multiples of A: what a block reads and writes to merge the results of a ring's parts in fp32
INT4_BYTES = 1 / 2 + 2 / EXCHANGE_BLOCK  # of a number that travels as int4
# Ranks share by speed if the slowest is slower than the fastest by this factor. It is larger for devices of one name,
# which only seem to differ if something else ran while they were measured.
UNLIKE, UNLIKE_OF_A_NAME = 1.1, 1.5


@dataclass(frozen=True)
class Prediction:
    """What a step of a plan takes: `computing` and `waiting`, in seconds. bytes: what the rank with the most needs of
    its device, for kept weights and a forward. fits: whether the device has that much, as far as known. loops: whether
    the steps follow one another in the ranks, which matters to PipeFusion only. is_alone: whether one device computes
    everything. has_run: whether the plan has run here, and took that long."""

    plan: ParallelPlan
    computing: float
    waiting: float
    bytes: float
    fits: bool = True
    loops: bool = False
    is_alone: bool = False
    has_run: bool = False

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting

    @property
    def words(self) -> str:
        """The plan in words that tell apart what takes differently long. One device has the same words whether others
        have no rows of the batch or no part of the plan."""
        plan = replace(self.plan, dp=1, cfg=1, speeds=()) if self.is_alone else self.plan
        return f"{plan} in a loop" if self.loops and plan.pipefusion * plan.patch_count > 1 else str(plan)

    def replace_seconds(self, seconds: float) -> Prediction:
        """Returns the prediction of a plan that has run with what a step took."""
        factor = seconds / self.seconds
        return replace(self, computing=self.computing * factor, waiting=self.waiting * factor, has_run=True)


class RankShare(NamedTuple):
    """A rank's share of a step: rows of the batch, and shares of their tokens and of their attention."""

    rows: float
    tokens: float
    attention: float


def predict(work: Work, plan: ParallelPlan, machine: Machine, sizes: WeightSizes) -> Prediction:
    """Estimates a step of work whose cost is known. sizes: of the weights; weights=auto counts as whole."""
    forward, shares = work.cost, share_work(work, plan)
    ranks = [*zip(shares, machine.first(plan.world_size).speeds, strict=True)]
    members = plan.token_ways * plan.pipefusion
    groups = [ranks[start : start + members] for start in range(0, len(ranks), members)]
    computing, waiting = max(
        (time_group(work, plan, group, machine, sizes) for group in groups if group[0][0].rows), key=sum
    )
    others = work.parts - shares[0].rows
    link = machine.all_gather if work.loops else machine.send  # in a loop, every rank receives the others' results
    waiting += link.seconds(forward.prediction * others, 1) if others else 0.0
    if plan.weights in (SHARED, HOST):
        forwards = plan.patch_count * work.count_calls(shares[0].rows)
        fetching = forwards * sizes.count_fetched_bytes(plan) / machine.links.of(plan.weights)
        waiting += max(0.0, fetching - computing - waiting)
    needed = max(sizes.count_resident_bytes(plan)) + count_working_bytes(work, plan, sizes)
    is_alone = members == 1 and not others
    return Prediction(plan, computing, waiting, needed, loops=work.loops, is_alone=is_alone)


def time_group(
    work: Work, plan: ParallelPlan, ranks: Sequence[tuple[RankShare, Speed]], machine: Machine, sizes: WeightSizes
) -> tuple[float, float]:
    """Returns the seconds of computing and waiting of a batch group's step. ranks: of the group, stage by stage.

    PipeFusion: each patch of each forward takes a turn on every stage. In a stock sampler's step, the last turn has to
    leave the last stage; in a loop, the next step's turns follow at once."""
    forward, ways = work.cost, plan.token_ways
    forwards, tokens = work.count_calls(ranks[0][0].rows), 1 / plan.patch_count
    each_rows = ranks[0][0].rows / forwards
    computing, waiting = max(
        (
            time_turn(forward, plan, ranks[stage * ways :][:ways], each_rows, machine, share, tokens)
            for stage, share in enumerate(share_blocks(plan, sizes))
        ),
        key=sum,
    )
    drained = 0 if work.loops and plan.patch_count > 1 else plan.pipefusion - 1
    turns = plan.patch_count * forwards + drained
    messages = drained * machine.send.seconds(forward.activation * tokens * each_rows / ways, 1)
    gathered = forward.prediction + forward.gathers * forward.activation
    ends = machine.all_gather.seconds(gathered * each_rows * tokens * (1 - 1 / ways), 1 + forward.gathers)
    return computing * turns, waiting * turns + messages + (ends * turns if ways > 1 else 0.0)


def time_turn(
    forward: ForwardCost,
    plan: ParallelPlan,
    ranks: Sequence[tuple[RankShare, Speed]],
    rows: float,
    machine: Machine,
    blocks: float,
    tokens: float,
) -> tuple[float, float]:
    """Returns the seconds in which the ranks that share tokens compute, and wait for exchanges, in a forward of these
    shares of the blocks and tokens. All that is outside of the blocks is computed in full."""
    count, ways, attending, other = forward.count * blocks, plan.token_ways, 0.0, 0.0
    merged = MERGED * forward.activation * forward.count * plan.ring if plan.ring > 1 else 0.0
    others = forward.blocks._replace(attention=0.0, moved=forward.blocks.moved + merged)
    for share, speed in ranks:
        attention = forward.blocks.attention / speed.attention
        attending = max(attending, rows * tokens * share.attention * blocks * attention)
        seconds = blocks * time_alone(others, speed, rows * tokens * share.tokens)
        other = max(other, seconds + time_alone(forward.rest, speed, rows))
    waiting = count * time_exchanges(forward, plan, rows * tokens, machine, attending / count)
    return attending + other, waiting + (machine.send.seconds(0, forward.exchanges) if ways > 1 else 0.0)


def time_exchanges(forward: ForwardCost, plan: ParallelPlan, rows: float, machine: Machine, attending: float) -> float:
    """Returns the seconds for which ranks wait in a block. attending: the seconds for which they compute attention.

    Ulysses exchanges queries, keys, values and the result, in parts: one part travels while attention computes another.
    Ring: the next keys travel while attention computes with the present ones."""
    degree, waiting = plan.ulysses, 0.0
    all_tokens = forward.activation * rows * (INT4_BYTES / forward.itemsize if plan.keeps_differences else 1.0)
    if degree > 1:
        sent = (2 + 2 * forward.kv) * all_tokens / plan.ring * (degree - 1) / degree**2
        needed = machine.all_to_all.seconds(sent, 2 * EXCHANGE_PARTS)
        covered = 1 - 1 / EXCHANGE_PARTS
        waiting += needed - machine.hides * covered * min(needed, attending)
    if plan.ring > 1:
        sent = 2 * forward.kv * all_tokens / plan.ulysses * (plan.ring - 1) / plan.ring
        needed = machine.send.seconds(sent, plan.ring - 1)
        waiting += needed - machine.hides * min(needed, attending * (plan.ring - 1) / plan.ring)
    return waiting


def share_work(work: Work, plan: ParallelPlan) -> list[RankShare]:
    """Returns each rank's share, in order. Rows are shared over dp and cfg, tokens over ring and ulysses, heads over
    ulysses."""
    found, queries = [], defaultdict[tuple[int, ...], float](float)
    for coordinates in coordinates_of_ranks(plan):
        by_batch = axis_shares(plan, "batch", coordinates)
        own_rows = shard_sizes(work.parts, plan.ways(BATCH_AXES), by_batch)[coordinates["batch"]]
        start, stop = own_share(plan, "sequence", coordinates)
        heads = len(own_heads(work.cost.heads, plan, coordinates)) / work.cost.heads
        ring = tuple(coordinates[axis] for axis in ("batch", "pipefusion", "ring"))
        queries[ring] += stop - start
        found.append((own_rows, stop - start, heads, ring))
    return [RankShare(own_rows, tokens, heads * queries[ring]) for own_rows, tokens, heads, ring in found]


def share_blocks(plan: ParallelPlan, sizes: WeightSizes) -> list[float]:
    """Returns each stage's share of the blocks, which take equally long; even shares if the blocks are unknown."""
    if len(sizes.blocks) < plan.pipefusion:
        return [1 / plan.pipefusion] * plan.pipefusion
    return [len(stage) / len(sizes.blocks) for stage in stages_of(plan, sizes.blocks)]


def count_working_bytes(work: Work, plan: ParallelPlan, sizes: WeightSizes) -> float:
    """Returns what the rank with the most needs beside the weights: for a forward of all rows, and for what it keeps
    for later steps."""
    forward, rows = work.cost, work.parts
    blocks = max(share_blocks(plan, sizes)) * forward.count
    tokens = forward.activation * largest_rows(plan, rows) / plan.token_ways
    return rank_bytes(forward.peak * rows, rows, plan) + stale_cache_factor(plan, forward.kv) * tokens * blocks


def time_alone(cost: Cost, speed: Speed, rows: float) -> float:
    """Returns the seconds of this cost of so many rows on one device."""
    work = cost.linear / speed.linear + cost.attention / speed.attention + cost.moved / speed.memory
    return rows * work + cost.operations * speed.operation


def compare_speeds(forward: ForwardCost, machine: Machine) -> tuple[float, ...]:
    """Returns each rank's speed on this forward to two digits; the fastest is 1. Returns () if they are alike."""
    unlike = UNLIKE if len({speed.name for speed in machine.speeds}) > 1 else UNLIKE_OF_A_NAME
    seconds = [time_alone(forward.blocks, each, 1) + time_alone(forward.rest, each, 1) for each in machine.speeds]
    if max(seconds) < unlike * min(seconds):
        return ()
    return tuple(round(min(seconds) / each, 2) for each in seconds)
