"""Finds the fastest plan that fits. It predicts every exact plan for the given ranks and sorts them, the best first.

PipeFusion, caches and fp8 change the image, so they are never chosen.
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
    """A model's weights, and the memory for them. room: returns the memory for weights under a plan, beside a forward
    of this many bytes. Returns None if it is unknown; then all plans fit."""

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
    """Returns every exact plan that the model allows for these ranks, the fastest that fits first. If ranks differ in
    speed, it also tries shares in proportion.

    forward: the cost of one row, see `count_forward`.
    rows: how many rows the model sees at once in a step; cond and uncond both count.
    machine: see `Machine`. A benchmark makes one from its own measurements.
    check: raises PlanError if the model does not allow a plan, such as `lambda plan: plan.check_model(heads=24)`.
    branches: whether the rows are cond and uncond. Then an even number of batch groups is written as cfg=2.
    corrected: corrects a prediction by what was measured of this model.

    Using one device is a plan with a batch group per rank, in which the groups without a row are idle. So it is listed
    wherever rows can be computed independently.
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
    """Sorts plans that fit first, then those that lack the least memory. Then by seconds, then by fewer messages."""
    plan = predicted.plan
    lacking = 0.0 if predicted.fits else predicted.bytes
    return lacking, predicted.seconds, plan.ring, plan.ulysses


def list_plans(ranks: int, branches: bool, speeds: Sequence[float] = ()) -> Iterator[ParallelPlan]:
    """Yields all ways to share work over these ranks: evenly, and in proportion to these speeds."""
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
    """Predicts a plan with its weights as the ranks would decide them."""
    if weights is None:
        return predict(forward, rows, plan, machine)
    sizes, room = weights.sizes, weights.room(plan, rank_bytes(forward.peak * rows, rows, plan))
    if room is None:
        return predict(forward, rows, plan, machine, sizes)
    decided = fit_weights(plan, sizes, room, machine.links)
    predicted = predict(forward, rows, decided, machine, sizes)
    fits = max(sizes.count_kept_bytes(decided)) <= room.device
    return replace(predicted, plan=plan if plan.weights == AUTO else decided, fits=fits)
