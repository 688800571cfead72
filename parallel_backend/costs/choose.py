"""Which plan is the fastest that fits: all exact ones for so many ranks, each predicted, the best first.

PipeFusion, caches and fp8 change the image, and are never chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..errors import PlanError
from ..plan import AUTO, ParallelPlan
from ..weights.fitting import WeightRoom, fit_weights
from ..weights.sizes import WeightSizes
from .forward import ForwardCost
from .machine import Machine
from .memory import rank_bytes
from .predict import Prediction, compare_speeds, predict

Check = Callable[[ParallelPlan], None]


class Weights(NamedTuple):
    """A model's weights, and the memory for them. room: what the ranks of a plan have for weights beside a forward that
    takes so many bytes; None where nobody knows, and all plans fit."""

    sizes: WeightSizes
    room: Callable[[ParallelPlan, float], WeightRoom | None]


def rank_plans(
    forward: ForwardCost,
    rows: int,
    machine: Machine,
    ranks: int,
    *,
    check: Check = lambda plan: None,
    branches: bool = False,
    weights: Weights | None = None,
    corrected: Callable[[Prediction], Prediction] = lambda predicted: predicted,
) -> list[Prediction]:
    """Every exact plan for so many ranks that the model allows, the fastest that fits first. Ranks of unlike speed
    share in proportion, where that is faster.

    forward: of one row, see `count_forward`. rows: that the model sees at once in a step, cond and uncond counted both.
    machine: see `Machine`; a benchmark makes one of its own measurements. check: raises PlanError for a plan that the
    model does not allow, such as `lambda plan: plan.check_model(heads=24)`. branches: whether the rows are of cond and
    uncond; an even number of groups of the batch is told as cfg=2 then. corrected: by what was measured of this model.

    One device alone is a plan with as many groups of the batch as ranks, of which those without a row wait: it is there
    wherever rows can be computed apart.
    """
    found = []
    for plan in list_plans(ranks, branches and rows > 1, compare_speeds(forward, machine.first(ranks))):
        try:
            check(plan)
        except PlanError:
            continue
        found.append(corrected(predict_fitted(forward, rows, plan, machine, weights)))
    return sorted(found, key=sort_key)


def sort_key(predicted: Prediction) -> tuple:
    """What fits before what does not, of that what lacks least; then by seconds; then what sends less often."""
    plan = predicted.plan
    lacking = 0.0 if predicted.fits else predicted.bytes
    return lacking, predicted.seconds, plan.ring, plan.ulysses


def list_plans(ranks: int, branches: bool, speeds: Sequence[float] = ()) -> Iterator[ParallelPlan]:
    """All ways to share work over so many ranks; over ranks of these speeds, each way evenly and in proportion."""
    for ring, ulysses in itertools.product(list_divisors(ranks), repeat=2):
        ways, rest = divmod(ranks, ring * ulysses)
        if not rest:
            cfg = 2 if branches and ways % 2 == 0 else 1
            even = ParallelPlan(dp=ways // cfg, cfg=cfg, ring=ring, ulysses=ulysses)
            yield from dict.fromkeys((even, replace(even, speeds=tuple(speeds))))


def list_divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def predict_fitted(
    forward: ForwardCost, rows: int, plan: ParallelPlan, machine: Machine, weights: Weights | None
) -> Prediction:
    """The prediction of a plan, with its weights as the ranks would decide on them."""
    if weights is None:
        return predict(forward, rows, plan, machine)
    sizes, room = weights.sizes, weights.room(plan, rank_bytes(forward.peak * rows, rows, plan))
    if room is None:
        return predict(forward, rows, plan, machine, sizes)
    decided = fit_weights(plan, sizes, room, machine.links)
    predicted = predict(forward, rows, decided, machine, sizes)
    fits = max(sizes.count_kept_bytes(decided)) <= room.device
    return replace(predicted, plan=plan if plan.weights == AUTO else decided, fits=fits)
