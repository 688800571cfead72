"""How long a step of a plan takes, and what a rank needs: by what a forward takes and what the machine can.

All ranks of a plan wait for the slowest in each block, so that a step is

    the longest computing of any rank + what is exposed of the exchanges + what is exposed of fetched weights

where an exchange is exposed as far as the engine has nothing to compute meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..axes import BATCH_AXES, TOKEN_AXES
from ..groups.mesh_layout import axis_shares, fraction, own_heads, places_of_ranks, shard_sizes, split_sizes
from ..plan import EXCHANGE_PARTS, HOST, OFF, SHARED, ParallelPlan
from ..weights.sizes import WeightSizes
from .forward import Cost, ForwardCost
from .machine import Machine, Speed
from .memory import rank_bytes

# Under ring, each part of the keys gives a result in fp32 that is merged with the one so far: bytes read and written,
# in times of A.
MERGED = 6
# How much slower the slowest rank is from which on ranks share by speed: devices of other names, and of one name, which
# are alike, and measured to differ where something else ran meanwhile.
UNLIKE, UNLIKE_OF_A_NAME = 1.1, 1.5


class Exchange(NamedTuple):
    """What an axis costs in a block.

    sent: bytes that a rank sends, of A, the bytes of the tokens of all of the axis's ranks, N, its degree, and K, the
    heads of keys for each of the queries'. times: how many exchanges that are, of N. link: on which. covered: how much
    of it can be under way while attention computes, and during: for how much of attention's time that is so, of N.
    beside: how much more of it can be, in a block that has products beside attention, and while those are computed.
    """

    sent: Callable[[float, int, float], float]
    times: Callable[[int], int]
    link: str
    covered: float = 0.0
    during: Callable[[int], float] = lambda N: 0.0
    beside: float = 0.0


# As in tests/support/fakes/formulas.py. Ulysses: queries, keys and values in one exchange, the result in another, in
# parts (`seams/attention.py`), of which one travels while another is attended to; the first to come and the last to go
# are waited for, but that an MLP beside attention (`seams/beside.py`) is computed while the first comes. Ring: the next
# keys travel while those at hand are attended to.
EXCHANGES = {
    "ulysses": Exchange(
        lambda A, N, K: (2 + 2 * K) * A * (N - 1) / N**2,
        lambda N: 2 * EXCHANGE_PARTS,
        "all_to_all",
        1 - 1 / EXCHANGE_PARTS,
        lambda N: 1 - 1 / EXCHANGE_PARTS,
        3 / 4 / EXCHANGE_PARTS,
    ),
    "ring": Exchange(lambda A, N, K: 2 * K * A * (N - 1) / N, lambda N: N - 1, "send", 1.0, lambda N: (N - 1) / N),
}


@dataclass(frozen=True)
class Prediction:
    """Of a plan. A step is `computing` and `waiting`, in seconds. bytes: that the rank with the most needs of its
    device, kept weights and a forward. fits: whether the device has them, as far as that is known."""

    plan: ParallelPlan
    computing: float
    waiting: float
    bytes: float
    fits: bool = True

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting


class RankShare(NamedTuple):
    """A rank's of a step: rows of the batch, a share of their tokens, and in attention of the queries and of the
    heads."""

    rows: int
    tokens: float
    queries: float
    heads: float


class Busy(NamedTuple):
    """Seconds in which the slowest of some ranks computes, in attention and else; of those, beside attention."""

    attending: float
    other: float
    beside: float

    @property
    def seconds(self) -> float:
        return self.attending + self.other


def predict(
    forward: ForwardCost, rows: int, plan: ParallelPlan, machine: Machine, sizes: WeightSizes | None = None
) -> Prediction:
    """A step in which the model sees so many rows at once. sizes: of the weights, where they are known; those of a plan
    with weights=auto count as whole."""
    parts, members = share_work(forward, rows, plan), plan.token_ways
    ranks = [*zip(parts, machine.first(plan.world_size).speeds, strict=True)]
    groups = [ranks[start : start + members] for start in range(0, len(ranks), members)]
    slowest = max(groups, key=lambda group: estimate_busy(forward, plan, group).seconds)
    busy, own_rows = estimate_busy(forward, plan, slowest), slowest[0][0].rows
    computing = busy.seconds
    waiting = estimate_exchange(forward, plan, own_rows, busy, machine)
    waiting += estimate_collect(forward, rows - parts[0].rows, machine)
    if sizes and plan.weights in (SHARED, HOST):
        waiting += max(0.0, sizes.count_fetched_bytes(plan) / machine.links.of(plan.weights) - computing - waiting)
    kept = max(sizes.count_kept_bytes(plan)) if sizes else forward.weights
    return Prediction(plan, computing, waiting, kept + rank_bytes(forward.peak * rows, rows, plan))


def share_work(forward: ForwardCost, rows: int, plan: ParallelPlan) -> list[RankShare]:
    """The ranks' parts, in their order: rows are shared over dp and cfg, tokens over ring and ulysses, heads over
    ulysses."""
    found, queries = [], defaultdict[tuple[int, ...], float](float)
    for places in places_of_ranks(plan):
        by_batch, by_tokens = (axis_shares(plan, axes, places) for axes in (BATCH_AXES, TOKEN_AXES))
        ways = plan.ways(BATCH_AXES)
        own_rows = (split_sizes(rows, by_batch) if by_batch else shard_sizes(rows, ways))[places["batch"]]
        start, stop = fraction(places["sequence"], plan.token_ways, by_tokens)
        heads = len(own_heads(forward.heads, plan, places)) / forward.heads
        ring = tuple(places[axis] for axis in ("batch", "ring"))
        queries[ring] += stop - start
        found.append((own_rows, stop - start, ring, heads))
    return [RankShare(own_rows, tokens, queries[ring], heads) for own_rows, tokens, ring, heads in found]


def estimate_busy(forward: ForwardCost, plan: ParallelPlan, ranks: Sequence[tuple[RankShare, Speed]]) -> Busy:
    """Of a group of the batch, whose ranks wait for each other before and after attention. What is outside of the
    blocks, every rank has whole."""
    attending, other, beside = [], [], []
    for part, speed in ranks:
        products = forward.blocks.linear * part.tokens
        moved = forward.blocks.moved * part.tokens + count_merged_bytes(forward, plan)
        blocks = Cost(products, 0.0, moved, forward.blocks.operations)
        attending.append(part.rows * forward.blocks.attention * part.heads * part.queries / speed.attention)
        seconds = sum(estimate_seconds(each.times(part.rows), speed) for each in (blocks, forward.rest))
        other.append(seconds if part.rows else 0.0)
        beside.append(part.rows * forward.blocks.beside * part.tokens / speed.linear)
    return Busy(max(attending), max(other), min(beside) if plan.compile == OFF else 0.0)


def compare_speeds(forward: ForwardCost, machine: Machine) -> tuple[float, ...]:
    """How fast each rank would run this by itself, the fastest being 1, to two digits; none where they are alike."""
    unlike = UNLIKE if len(set(machine.names)) > 1 else UNLIKE_OF_A_NAME
    alone = RankShare(1, 1.0, 1.0, 1.0)
    seconds = [estimate_busy(forward, ParallelPlan(), [(alone, speed)]).seconds for speed in machine.speeds]
    if max(seconds) < unlike * min(seconds):
        return ()
    return tuple(round(min(seconds) / each, 2) for each in seconds)


def count_merged_bytes(forward: ForwardCost, plan: ParallelPlan) -> float:
    return forward.count * MERGED * forward.activation / plan.ulysses if plan.ring > 1 else 0.0


def estimate_seconds(cost: Cost, speed: Speed) -> float:
    products = cost.linear / speed.linear + cost.attention / speed.attention
    return products + cost.moved / speed.memory + cost.operations * speed.operation


def estimate_exchange(forward: ForwardCost, plan: ParallelPlan, rows: int, busy: Busy, machine: Machine) -> float:
    """What is exposed of a step's exchanges in blocks, and of bringing the result together behind them. rows: of the
    group of the batch that has the most. busy: of the whole step."""
    all_tokens, exposed = forward.activation * rows, 0.0
    for axis, exchange in EXCHANGES.items():
        if (degree := getattr(plan, axis)) == 1:
            continue
        link = getattr(machine, exchange.link)
        needed = link.seconds(
            exchange.sent(all_tokens * degree / plan.token_ways, degree, forward.kv), exchange.times(degree)
        )
        meanwhile = busy.attending / forward.count * exchange.during(degree)
        parallel = forward.parallel if exchange.beside and busy.beside else 0.0
        exposed += needed - min(needed * exchange.covered, meanwhile) * (1 - parallel)
        if parallel:
            more = busy.beside / forward.count / parallel
            exposed -= min(needed * (exchange.covered + exchange.beside), meanwhile + more) * parallel
    tokens = plan.token_ways
    ends = machine.all_gather.seconds(forward.prediction * rows * (tokens - 1) / tokens, 1) if tokens > 1 else 0.0
    return exposed * forward.count + ends


def estimate_collect(forward: ForwardCost, others: int, machine: Machine) -> float:
    """Rank 0 gets the results of the other groups of the batch, so many rows."""
    return machine.send.seconds(forward.prediction * others, 1) if others else 0.0
