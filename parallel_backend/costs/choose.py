"""Finds the plan that auto uses: it lists every exact plan for the given ranks, and sorts them by their predictions.

The list has an order of its own. It decides where nothing is predicted.

PipeFusion, caches and a lossy exchange change the image, so they are never chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from ..axes import BATCH_AXES
from ..errors import PlanError
from ..plan import AUTO, ParallelPlan
from ..weights.fitting import WeightRoom, fit_weights
from ..weights.sizes import WeightSizes
from .forward import ForwardCost
from .machine import Machine
from .predict import Prediction, compare_speeds, count_working_bytes, predict

Check = Callable[[ParallelPlan], object]  # raises PlanError if something does not allow the plan
UNEVEN = Fraction(5, 4)  # the largest share of heads of one rank, relative to an even share, before a ring is better


class Weights(NamedTuple):
    """A model's weights, and the memory for them. room: returns the memory for weights under a plan, beside a forward
    of this many bytes. Returns None if it is unknown; then all plans fit."""

    sizes: WeightSizes
    room: Callable[[ParallelPlan, float], WeightRoom | None]


def allows(check: Check, plan: ParallelPlan) -> bool:
    try:
        check(plan)
    except PlanError:
        return False
    return True


def list_plans(
    ranks: int, rows: int, check: Check = lambda plan: None, *, branches: bool = False, heads: int = 1
) -> list[ParallelPlan]:
    """Returns every exact plan that the model allows for these ranks, in the order that is best without predictions.

    Plans whose batch groups all have equally many rows come first. Of these, the one with the most groups comes first,
    because rows need no communication. Then Ulysses comes before ring, unless some ranks would get too many heads.

    rows: how many rows the model sees at once in a step; cond and uncond both count.
    check: of the model, such as `lambda plan: plan.check_model(heads=24)`.
    branches: whether the rows are cond and uncond. Then an even number of batch groups is written as cfg=2.
    heads: of the model.

    Using one device is a plan with a batch group per rank, in which the groups without a row are idle. So it is listed
    wherever rows can be computed independently.
    """

    def order(plan: ParallelPlan) -> tuple:
        ways, largest = plan.ways(BATCH_AXES), -(-heads // plan.ulysses)
        return rows % ways > 0, -ways, largest * plan.ulysses > UNEVEN * heads, -plan.ulysses

    found = []
    for ring, ulysses in itertools.product(list_divisors(ranks), repeat=2):
        ways, rest = divmod(ranks, ring * ulysses)
        if rest:
            continue
        cfg = 2 if branches and rows > 1 and ways % 2 == 0 else 1
        plan = ParallelPlan(dp=ways // cfg, cfg=cfg, ring=ring, ulysses=ulysses)
        if allows(check, plan):
            found.append(plan)
    return sorted(found, key=order)


def rank_plans(
    plans: Iterable[ParallelPlan],
    forward: ForwardCost,
    rows: int,
    machine: Machine,
    *,
    weights: Weights | None = None,
    corrected: Callable[[Prediction], Prediction] = lambda predicted: predicted,
) -> list[Prediction]:
    """Returns the predictions of these plans: first those that fit, the fastest first, then those that lack the least
    memory. Equal ones keep their order. If ranks differ in speed, each plan is also tried with shares in proportion.

    forward: the cost of one row, see `count_forward`.
    rows: see `list_plans`.
    machine: see `Machine`. A benchmark makes one from its own measurements.
    corrected: corrects a prediction by what was measured of this model.
    """
    found = []
    for plan in plans:
        speeds = compare_speeds(forward, machine.first(plan.world_size))
        for each in dict.fromkeys((plan, replace(plan, speeds=speeds))):
            found.append(corrected(predict_fitted(forward, rows, each, machine, weights)))
    return sorted(found, key=lambda each: (0.0 if each.fits else each.bytes, each.seconds))


def list_divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def predict_fitted(
    forward: ForwardCost, rows: int, plan: ParallelPlan, machine: Machine, weights: Weights | None
) -> Prediction:
    """Predicts a plan with its weights as the ranks would decide them."""
    if weights is None:
        return predict(forward, rows, plan, machine)
    sizes, room = weights.sizes, weights.room(plan, count_working_bytes(forward, rows, plan))
    if room is None:
        return predict(forward, rows, plan, machine, sizes)
    decided = fit_weights(plan, sizes, room, machine.links)
    predicted = predict(forward, rows, decided, machine, sizes)
    fits = max(sizes.count_kept_bytes(decided)) <= room.device
    return replace(predicted, plan=plan if plan.weights == AUTO else decided, fits=fits)
