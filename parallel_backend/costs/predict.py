"""How long a step of a plan takes, and what a rank needs: by what a forward takes and what the machine can.

All ranks of a plan wait for the slowest in each block, so that a step is

    the longest computing of any rank + what is exposed of the exchanges + what is exposed of fetched weights

where an exchange is exposed as far as the engine has nothing to compute meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..plan import HOST, SHARED, ParallelPlan
from ..weights.sizes import WeightSizes
from .forward import Cost, Forward
from .machine import Machine, Speed

# A rank has all tokens before, after and, in ComfyUI's classes, between its blocks: so many times A beside what it has
# of its own tokens (`WHOLE` of tests/support/fakes/formulas.py).
WHOLE_STREAMS = 3
# Under ring, each part of the keys gives a result in fp32 that is merged with the one so far: bytes read and written,
# in times of A.
MERGED = 6


class Exchange(NamedTuple):
    """What an axis costs in a block.

    sent: bytes that a rank sends, of A, the bytes of the tokens of all of the axis's ranks, and N, its degree. times:
    how many exchanges that are, of N. link: on which. covered: how much of it can be under way while attention
    computes, and during: for how much of attention's time that is so, of N.
    """

    sent: Callable[[float, int], float]
    times: Callable[[int], int]
    link: str
    covered: float = 0.0
    during: Callable[[int], float] = lambda N: 0.0


# As in tests/support/fakes/formulas.py. Ulysses: queries, keys and values in one exchange, the result in another, of
# which one half travels while the other is attended to. Ring: the next keys travel while those at hand are attended to.
EXCHANGES = {
    "ulysses": Exchange(lambda A, N: 4 * A * (N - 1) / N**2, lambda N: 2, "all_to_all", 0.5, lambda N: 0.5),
    "ring": Exchange(lambda A, N: 2 * A * (N - 1) / N, lambda N: N - 1, "send", 1.0, lambda N: (N - 1) / N),
    "tp": Exchange(lambda A, N: 4 * A * (N - 1) / N, lambda N: 2, "all_gather"),
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


class Part(NamedTuple):
    """A rank's of a step: rows of the batch, and a share of their tokens."""

    rows: int
    tokens: float


def predict(
    forward: Forward, rows: int, plan: ParallelPlan, machine: Machine, sizes: WeightSizes | None = None
) -> Prediction:
    """A step in which the model sees so many rows at once. sizes: of the weights, where they are known; those of a plan
    with weights=auto count as whole."""
    speeds = machine.first(plan.world_size).speeds
    parts = parts_of(rows, plan)
    busy = [(computing_seconds(forward, plan, *each), each) for each in zip(parts, speeds, strict=True)]
    computing, (part, speed) = max(busy, key=lambda each: each[0])
    waiting = exchange_seconds(forward, plan, part, speed, machine) + collect_seconds(forward, rows, plan, machine)
    if sizes and plan.weights in (SHARED, HOST):
        waiting += max(0.0, sizes.fetched(plan) / machine.links.of(plan.weights) - computing - waiting)
    kept = max(sizes.kept(plan)) if sizes else forward.weights / plan.tp
    return Prediction(plan, computing, waiting, kept + max(working_bytes(forward, plan, each) for each in parts))


def parts_of(rows: int, plan: ParallelPlan) -> list[Part]:
    """The ranks' parts, in their order: rows are shared over dp and cfg, tokens over ring and ulysses."""
    ways, members = plan.dp * plan.cfg, plan.token_ways * plan.tp
    return [
        Part(own_rows, share)
        for own_rows in in_proportion(rows, [1.0] * ways)
        for share in [1 / plan.token_ways] * members
    ]


def in_proportion(count: int, weights: Sequence[float]) -> list[int]:
    """A whole number, split so; what is left over goes to the largest remainders, the first of equal ones."""
    exact = [count * weight / sum(weights) for weight in weights]
    shares = [math.floor(share + 1e-9) for share in exact]
    left = sorted(range(len(shares)), key=lambda place: (shares[place] - exact[place], place))
    for place in left[: count - sum(shares)]:
        shares[place] += 1
    return shares


def computing_seconds(forward: Forward, plan: ParallelPlan, part: Part, speed: Speed) -> float:
    """What a rank computes in a step. Under tp it has a share of products alone; what is outside of the blocks, every
    rank has whole."""
    if not part.rows:
        return 0.0
    blocks = Cost(
        forward.blocks.linear * part.tokens / plan.tp,
        attention_flops(forward, plan, part),
        forward.blocks.moved * part.tokens + merged_bytes(forward, plan),
        forward.blocks.operations,
    )
    return sum(seconds_of(each.times(part.rows), speed) for each in (blocks, forward.rest))


def attention_flops(forward: Forward, plan: ParallelPlan, part: Part) -> float:
    """Of a row, as many heads as the rank that has the most; under ring, of its own tokens' queries."""
    heads = math.ceil(forward.heads / plan.tp / plan.ulysses) / forward.heads
    return forward.blocks.attention * heads * min(1.0, part.tokens * plan.ulysses)


def merged_bytes(forward: Forward, plan: ParallelPlan) -> float:
    return forward.count * MERGED * forward.activation / plan.ulysses / plan.tp if plan.ring > 1 else 0.0


def seconds_of(cost: Cost, speed: Speed) -> float:
    products = cost.linear / speed.linear + cost.attention / speed.attention
    return products + cost.moved / speed.memory + cost.operations * speed.operation


def exchange_seconds(forward: Forward, plan: ParallelPlan, part: Part, speed: Speed, machine: Machine) -> float:
    """What is exposed of a step's exchanges in blocks, and of bringing the result together behind them."""
    all_tokens, exposed = forward.activation * part.rows, 0.0
    attending = attention_flops(forward, plan, part) * part.rows / speed.attention / forward.count
    for axis, exchange in EXCHANGES.items():
        if (degree := getattr(plan, axis)) == 1:
            continue
        inside = plan.token_ways if axis == "tp" else plan.token_ways * plan.tp // degree
        link = getattr(machine, exchange.link)
        needed = link.seconds(exchange.sent(all_tokens / inside, degree), exchange.times(degree))
        exposed += needed - min(needed * exchange.covered, attending * exchange.during(degree))
    tokens = plan.token_ways
    ends = machine.all_gather.seconds(forward.prediction * part.rows * (tokens - 1) / tokens, 1) if tokens > 1 else 0.0
    return exposed * forward.count + ends


def collect_seconds(forward: Forward, rows: int, plan: ParallelPlan, machine: Machine) -> float:
    """Rank 0 gets the results of the other groups of the batch."""
    others = rows - parts_of(rows, plan)[0].rows
    return machine.send.seconds(forward.prediction * others, 1) if others else 0.0


def working_bytes(forward: Forward, plan: ParallelPlan, part: Part) -> float:
    """Beside the weights, for a forward."""
    whole = min(forward.peak, WHOLE_STREAMS * forward.activation)
    return part.rows * (whole + (forward.peak - whole) * part.tokens)
