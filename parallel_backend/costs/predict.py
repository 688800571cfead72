"""Predicts how long a step of a plan takes and what memory a rank needs, from a forward's cost and the machine's speed.

All ranks of a plan wait for the slowest in each block, so a step takes

    the longest computing of any rank + the exposed part of the exchanges + the exposed part of fetched weights

An exchange is exposed while the engine has nothing to compute meanwhile. With pieces, all but the last piece's travel
while other pieces compute (`seams/exchange/pieces.py`). With stages or patches, a step is that of the
pipeline in `pipeline.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ..axes import BATCH_AXES, TOKEN_AXES
from ..groups.mesh_layout import (
    axis_shares,
    fraction,
    own_heads,
    places_of_ranks,
    shard_sizes,
    split_sizes,
)
from ..plan import EXCHANGE_PARTS, HOST, OFF, SHARED, ParallelPlan
from ..weights.sizes import WeightSizes
from .forward import Cost, ForwardCost
from .machine import Machine, Speed
from .overhead import CODED_BYTES, count_added_operations, count_coding, count_copied_bytes, count_merged_bytes
from .pipeline import (
    LATENT_BYTES,
    PipelineTimes,
    Turn,
    count_working_bytes,
    list_turns,
    run_pipeline,
    share_blocks,
    time_turns,
    without_links,
)
from .sparse import leave_out_pairs

# Ranks share by speed if the slowest is slower than the fastest by this factor. It is larger for devices of one name:
# those are alike, and only seem to differ if something else ran while they were measured.
UNLIKE, UNLIKE_OF_A_NAME = 1.1, 1.5


class Exchange(NamedTuple):
    """What an axis costs in a block.

    sent: bytes that a rank sends. It takes A, the bytes of all tokens of the axis's ranks; N, the axis's degree; and K,
    the key heads per query head.
    times: the number of exchanges, by N.
    link: which link they use.
    covered: how much of the exchange can overlap attention.
    during: for how much of attention's time that is possible, by N.
    last: the share that is sent after attention. No MLP can hide it.
    waits: how many waits share the exposed time, by N. The MLP hides the first only.
    """

    sent: Callable[[float, int, float], float]
    times: Callable[[int], int]
    link: str
    covered: float = 0.0
    during: Callable[[int], float] = lambda N: 0.0
    last: float = 0.0
    waits: Callable[[int], int] = lambda N: 1


# As in tests/support/fakes/formulas.py.
# Ulysses exchanges queries, keys and values once, and the result once. Both go in parts (`seams/attention.py`): one
# part travels while attention computes another. Attention waits for the first part to arrive and the last to leave. But
# an MLP beside attention (`seams/mlp_overlap.py`) is computed while the first part arrives.
# Ring: the next keys travel while attention computes with the present ones. Without Ulysses, the MLP is computed while
# the first keys travel.
EXCHANGES = {
    "ulysses": Exchange(
        lambda A, N, K: (2 + 2 * K) * A * (N - 1) / N**2,
        lambda N: 2 * EXCHANGE_PARTS,
        "all_to_all",
        1 - 1 / EXCHANGE_PARTS,
        lambda N: 1 - 1 / EXCHANGE_PARTS,
        1 / 4 / EXCHANGE_PARTS,
    ),
    "ring": Exchange(
        lambda A, N, K: 2 * K * A * (N - 1) / N,
        lambda N: N - 1,
        "send",
        1.0,
        lambda N: (N - 1) / N,
        waits=lambda N: N - 1,
    ),
}


@dataclass(frozen=True)
class Prediction:
    """The prediction for a plan. A step takes `computing` and `waiting`, in seconds. bytes: what the rank with the most
    needs of its device, for kept weights and a forward. fits: whether the device has that much, as far as known.
    whole: seconds of the first steps, which PipeFusion runs whole, and in which sparse attention is dense; 0 if all
    steps are alike. loops: whether the steps follow one another in the ranks, which matters to PipeFusion only.
    is_alone: whether one device computes everything."""

    plan: ParallelPlan
    computing: float
    waiting: float
    bytes: float
    fits: bool = True
    whole: float = 0.0
    loops: bool = False
    is_alone: bool = False

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting

    @property
    def is_staged(self) -> bool:
        """Whether the step is one of a pipeline."""
        return self.plan.pipefusion * self.plan.patch_count > 1

    @cached_property
    def words(self) -> str:
        """The plan in words that tell apart what takes differently long. One device has the same words whether others
        have no rows of the batch or no part of the plan."""
        plan = replace(self.plan, dp=1, cfg=1, speeds=()) if self.is_alone else self.plan
        return f"{plan} in a loop" if self.loops and self.is_staged else str(plan)

    def average(self, steps: int) -> float:
        """Returns the mean seconds of a step of a sampling. steps: 0 if they are not known."""
        if not self.whole or not steps:
            return self.seconds
        whole = min(steps, self.plan.whole_steps)
        return (whole * self.whole + (steps - whole) * self.seconds) / steps


class RankShare(NamedTuple):
    """A rank's share of a step: rows of the batch, and shares of their tokens, attention's queries and its heads."""

    rows: float
    tokens: float
    queries: float
    heads: float


class Busy(NamedTuple):
    """Seconds in which the slowest rank of a group computes: in attention, and in all else.
    overlap: of the latter, what can overlap attention's exchange."""

    attending: float
    other: float
    overlap: float

    @property
    def seconds(self) -> float:
        return self.attending + self.other


def predict(
    forward: ForwardCost,
    rows: int,
    plan: ParallelPlan,
    machine: Machine,
    sizes: WeightSizes | None = None,
    calls: int = 1,
    loops: bool = False,
) -> Prediction:
    """Predicts a step in which the model sees `rows` rows at once. sizes: of the weights, if known. weights=auto counts
    as whole. calls: in how many forwards of equal size the rows come. loops: see `Prediction`."""
    if plan.sparse != OFF:
        dense, sparse = (
            predict(each, rows, replace(plan, sparse=OFF), machine, sizes, calls, loops)
            for each in (forward, leave_out_pairs(forward, plan.sparse))
        )
        return replace(sparse, plan=plan, whole=dense.seconds)
    if plan.pipefusion * plan.patch_count > 1:
        return predict_pipeline(forward, rows, plan, machine, sizes, calls, loops)
    parts, groups = group_ranks(forward, rows, plan, machine, plan.token_ways)
    slowest = max(groups, key=lambda group: estimate_busy(forward, plan, group).seconds)
    own_rows = slowest[0][0].rows
    forwards = count_forwards(calls, own_rows, rows)
    each_rows = own_rows / forwards
    busy = estimate_busy(forward, plan, [(part._replace(rows=part.rows / forwards), speed) for part, speed in slowest])
    computing = forwards * busy.seconds
    waiting = forwards * (
        estimate_exchange(forward, plan, each_rows, busy, machine) + estimate_ends(forward, plan, each_rows, machine)
    )
    waiting += estimate_collect(forward, rows - parts[0].rows, machine, loops)
    waiting += estimate_fetching(plan, sizes, forwards, computing + waiting, machine)
    kept = max(sizes.count_kept_bytes(plan)) if sizes else forward.weights
    needed, is_alone = kept + count_working_bytes(forward, rows, plan, sizes), plan.token_ways == 1 and own_rows == rows
    return Prediction(plan, computing, waiting, needed, loops=loops, is_alone=is_alone)


def predict_pipeline(
    forward: ForwardCost,
    rows: int,
    plan: ParallelPlan,
    machine: Machine,
    sizes: WeightSizes | None,
    calls: int,
    loops: bool,
) -> Prediction:
    """Predicts a plan with stages or patches, see `predict`. The time in which a stage waits for others to compute
    counts as computing."""
    parts, groups = group_ranks(forward, rows, plan, machine, plan.token_ways * plan.pipefusion)
    found = [
        time_group(forward, rows, plan, machine, sizes, calls, loops, group) for group in groups if group[0][0].rows
    ]
    computing, seconds, whole = max(found, key=lambda each: each[1])
    collected = 0.0 if loops else estimate_collect(forward, rows - parts[0].rows, machine, loops)
    if plan.pipefusion > 1 and not loops:
        collected += machine.collect.seconds(forward.prediction * rows, 1)
    forwards = plan.patch_count * max(count_forwards(calls, group[0][0].rows, rows) for group in groups)
    seconds += estimate_fetching(plan, sizes, forwards, seconds, machine)
    kept = max(sizes.count_kept_bytes(plan)) if sizes else forward.weights / plan.pipefusion
    kept += count_working_bytes(forward, rows, plan, sizes)
    is_stale = plan.patch_count > 1
    return Prediction(
        plan, computing, seconds - computing + collected, kept, True, is_stale * (whole + collected), loops
    )


def group_ranks(
    forward: ForwardCost, rows: int, plan: ParallelPlan, machine: Machine, members: int
) -> tuple[list[RankShare], list[list[tuple[RankShare, Speed]]]]:
    """Returns each rank's share, and the same with its speed by batch group. members: of a group."""
    parts = share_work(forward, rows, plan)
    ranks = [*zip(parts, machine.first(plan.world_size).speeds, strict=True)]
    return parts, [ranks[start : start + members] for start in range(0, len(ranks), members)]


def count_forwards(calls: int, own_rows: float, rows: int) -> int:
    """Returns how many of a step's calls a batch group with so many of all rows computes."""
    return max(1, round(calls * own_rows / rows))


def estimate_fetching(
    plan: ParallelPlan, sizes: WeightSizes | None, forwards: int, meanwhile: float, machine: Machine
) -> float:
    """Returns the exposed time of fetching weights for so many forwards. meanwhile: the seconds of the step without
    it."""
    if sizes is None or plan.weights not in (SHARED, HOST):
        return 0.0
    return max(0.0, forwards * sizes.count_fetched_bytes(plan) / machine.links.of(plan.weights) - meanwhile)


def time_group(
    forward: ForwardCost,
    rows: int,
    plan: ParallelPlan,
    machine: Machine,
    sizes: WeightSizes | None,
    calls: int,
    loops: bool,
    ranks: Sequence[tuple[RankShare, Speed]],
) -> tuple[float, float, float]:
    """Returns the seconds of a batch group's step if nothing were sent, those of the step, and those of a step that
    runs whole."""
    own_rows, ways = ranks[0][0].rows, plan.token_ways
    forwards = count_forwards(calls, own_rows, rows)
    each_rows = own_rows / forwards
    stages = [ranks[start : start + ways] for start in range(0, len(ranks), ways)]
    shares = share_blocks(plan, sizes)

    def estimate(part: ForwardCost, stage: int) -> tuple[float, float]:
        own = [(share._replace(rows=each_rows), speed) for share, speed in stages[stage]]
        busy = estimate_busy(part, plan, own)
        exposed = estimate_exchange(part, plan, each_rows, busy, machine)
        if stage == plan.pipefusion - 1:
            exposed += estimate_ends(part, plan, each_rows, machine)
            if loops and len(ranks) < plan.world_size:  # cond and uncond are on other ranks
                others = plan.ways(BATCH_AXES) - 1
                exposed += machine.all_gather.seconds(forward.prediction * each_rows * others, 1)
        return busy.seconds, exposed

    def run(turns: list[Turn], loops: bool) -> tuple[float, float]:
        busy, seconds = time_turns(forward, plan, turns, shares, estimate)
        messages = [machine.send.seconds(forward.activation * each.tokens * each_rows / ways, 1) for each in turns]
        latents = forward.prediction / forward.itemsize * LATENT_BYTES * each_rows / plan.patch_count
        returns = loops and plan.pipefusion > 1
        times = PipelineTimes(seconds, messages, machine.send.seconds(latents, 1) if returns else 0.0)
        return run_pipeline(without_links(times, busy), turns, loops), run_pipeline(times, turns, loops)

    _, whole = run([Turn(1.0)] * forwards, False)
    turns = list_turns(plan, forward.text, forwards)
    return (*run(turns, loops and plan.patch_count > 1), whole)


def share_work(forward: ForwardCost, rows: int, plan: ParallelPlan) -> list[RankShare]:
    """Returns each rank's share, in order. Rows are shared over dp and cfg, tokens over ring and ulysses, heads over
    ulysses."""
    found, queries = [], defaultdict[tuple[int, ...], float](float)
    for places in places_of_ranks(plan):
        by_batch, by_tokens = (axis_shares(plan, axes, places) for axes in (BATCH_AXES, TOKEN_AXES))
        ways = plan.ways(BATCH_AXES)
        own_rows = (split_sizes(rows, by_batch) if by_batch else shard_sizes(rows, ways))[places["batch"]]
        start, stop = fraction(places["sequence"], plan.token_ways, by_tokens)
        heads = len(own_heads(forward.heads, plan, places)) / forward.heads
        ring = tuple(places[axis] for axis in ("batch", "pipefusion", "ring"))
        queries[ring] += stop - start
        found.append((own_rows, stop - start, ring, heads))
    return [RankShare(own_rows, tokens, queries[ring], heads) for own_rows, tokens, ring, heads in found]


def estimate_busy(forward: ForwardCost, plan: ParallelPlan, ranks: Sequence[tuple[RankShare, Speed]]) -> Busy:
    """Returns how long a batch group computes. Its ranks wait for each other before and after attention. Every rank
    computes everything outside of the blocks in full."""
    attending, other, overlap = [], [], []
    for part, speed in ranks:
        others = forward.blocks._replace(attention=0.0, scores=0.0).times(part.tokens)
        coding, copied = count_coding(forward, plan), count_copied_bytes(forward, plan) * part.tokens
        moved = others.moved + count_merged_bytes(forward, plan) + copied + coding.moved
        operations = others.operations + count_added_operations(forward, plan) + coding.operations
        blocks = others._replace(moved=moved, operations=operations * plan.turns)
        attending.append(part.rows * part.heads * part.queries * estimate_attention(forward.blocks, speed))
        seconds = sum(estimate_seconds(each.times(part.rows), speed) for each in (blocks, forward.rest))
        other.append(seconds if part.rows else 0.0)
        overlap.append(part.rows * forward.blocks.overlap * part.tokens / speed.linear)
    return Busy(max(attending), max(other), min(overlap))


def compare_speeds(forward: ForwardCost, machine: Machine) -> tuple[float, ...]:
    """Returns each rank's speed on this forward to two digits; the fastest is 1. Returns () if they are alike."""
    unlike = UNLIKE if len(set(machine.names)) > 1 else UNLIKE_OF_A_NAME
    alone = RankShare(1, 1.0, 1.0, 1.0)
    seconds = [estimate_busy(forward, ParallelPlan(), [(alone, speed)]).seconds for speed in machine.speeds]
    if max(seconds) < unlike * min(seconds):
        return ()
    return tuple(round(min(seconds) / each, 2) for each in seconds)


def estimate_bands(forward: ForwardCost, plan: ParallelPlan, rows: float, machine: Machine) -> float:
    """Returns the time of the exchanges of border rows and statistics. Next to none of it is hidden."""
    bands, others = forward.bands, plan.token_ways - 1
    if bands is None or not others:
        return 0.0
    borders = machine.send.seconds(bands.borders * rows * min(2, others) / 2, bands.convolutions)
    return borders + machine.all_gather.seconds(bands.norms * rows * others, bands.group_norms)


def estimate_seconds(cost: Cost, speed: Speed) -> float:
    others = cost.moved / speed.memory + cost.functions / speed.functions + cost.operations * speed.operation
    others += cost.read / speed.weights
    return cost.linear / speed.linear + estimate_attention(cost, speed) + others


def estimate_attention(cost: Cost, speed: Speed) -> float:
    return cost.attention / speed.attention + cost.scores / speed.scores


def estimate_exchange(forward: ForwardCost, plan: ParallelPlan, rows: float, busy: Busy, machine: Machine) -> float:
    """Returns the exposed time of a forward's exchanges in the model. rows: of the batch group with the most rows.
    busy: of the whole forward."""
    exposed = 0.0
    beside = busy.overlap / forward.count * (1.0 if plan.compile == OFF else forward.plain)
    travels = CODED_BYTES / forward.itemsize if plan.keeps_differences else 1.0
    for axis, exchange in EXCHANGES.items():
        if (degree := getattr(plan, axis)) == 1:
            continue
        link = getattr(machine, exchange.link)
        all_tokens = (max(forward.cached, forward.activation) if axis == "ring" else forward.activation) * rows
        sent = exchange.sent(all_tokens * degree / plan.token_ways, degree, forward.kv) * travels
        needed = link.seconds(sent, exchange.times(degree) * plan.turns)
        needed -= machine.hides * min(needed * (1 - 1 / plan.turns), busy.other / forward.count)
        meanwhile = busy.attending / forward.count * exchange.during(degree)
        left = needed - machine.hides * min(needed * exchange.covered, meanwhile)
        exposed += left
        if beside:
            first = max(0.0, left - needed * exchange.last) / exchange.waits(degree)
            exposed -= forward.parallel * machine.hides * min(first, beside / forward.parallel)
            beside = 0.0  # the MLP is computed once
    return exposed * forward.count + estimate_bands(forward, plan, rows, machine)


def estimate_ends(forward: ForwardCost, plan: ParallelPlan, rows: float, machine: Machine) -> float:
    """Returns the time for the ranks that share tokens to gather the result, and the tokens between blocks."""
    if plan.token_ways == 1:
        return 0.0
    gathered = forward.prediction + forward.gathers * forward.activation
    return machine.all_gather.seconds(gathered * rows * (1 - 1 / plan.token_ways), 1 + forward.gathers)


def estimate_collect(forward: ForwardCost, others: float, machine: Machine, loops: bool) -> float:
    """Returns the time for rank 0 to receive the other batch groups' results, `others` rows in all. loops: every rank
    receives them, for the next step."""
    link = machine.all_gather if loops else machine.collect
    return link.seconds(forward.prediction * others, 1) if others else 0.0
