"""Finds the plan that auto uses: lists every exact plan for the given ranks, orders them by their predictions, and
tries the first few.

The list has an order of its own. It decides where nothing is predicted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from ..axes import BATCH_AXES
from ..errors import PlanError
from ..plan import ParallelPlan
from ..weights.fitting import WeightRoom, fit_weights
from ..weights.sizes import WeightSizes
from .forward import Work
from .machine import Machine
from .roofline import Prediction, compare_speeds, count_working_bytes, predict

# Returns the memory for weights under a plan, beside a forward of so many bytes; None if it is unknown.
Room = Callable[[ParallelPlan, float], WeightRoom | None]
Tried = tuple[int, int]  # which of how many plans is tried
PlanCheck = Callable[[ParallelPlan], object]  # raises PlanError if something does not allow the plan
PATCHES = (1, 2, 4)  # how many patches for each stage are tried
TRIED, NEAR = 3, 4 / 3  # how many plans are tried at most, if predicted within a third of the fastest that has run
UNEVEN = Fraction(5, 4)  # the largest share of heads of one rank, relative to an even share, before a ring is better


def list_plans(ranks: int, rows: int, check: PlanCheck, *, branches: bool, heads: int) -> list[ParallelPlan]:
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
        with suppress(PlanError):
            check(plan)
            found.append(plan)
    return sorted(found, key=order)


def list_patches(plan: ParallelPlan) -> list[ParallelPlan]:
    """Returns a plan of several stages with each number of patches that is tried."""
    return [replace(plan, patches=each * plan.pipefusion) for each in PATCHES]


def order_plans(
    plans: Iterable[ParallelPlan], work: Work, machine: Machine, sizes: WeightSizes, room: Room
) -> list[Prediction]:
    """Returns the predictions of these plans for work whose cost is known: first those that fit, the fastest first,
    then those that lack the least memory. Equal ones keep their order. If ranks differ in speed, each plan is also
    tried with shares in proportion."""
    found = []
    for plan in plans:
        speeds = compare_speeds(work.cost, machine.first(plan.world_size))
        for each in dict.fromkeys((plan, replace(plan, speeds=speeds))):
            found.append(predict_fitted(work, each, machine, sizes, room))
    return sorted(found, key=lambda each: (0.0 if each.fits else each.bytes, each.seconds))


def list_divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def predict_fitted(work: Work, plan: ParallelPlan, machine: Machine, sizes: WeightSizes, room: Room) -> Prediction:
    """Predicts a plan with its weights as the ranks would decide them. It fits if the room is unknown."""
    found = room(plan, count_working_bytes(work, plan, sizes))
    if found is None:
        return predict(work, plan, machine, sizes)
    decided = fit_weights(plan, sizes, found, machine.links)
    return replace(predict(work, decided, machine, sizes), plan=plan, fits=found.holds(decided, sizes))


def choose_prediction(found: Sequence[Prediction], measured: Mapping[str, float]) -> tuple[Prediction, Tried | None]:
    """Chooses the plan to run; also says which plan is tried, if one is. Each of the first samplings tries the next
    plan in order, as long as it is predicted to take at most a third longer than the fastest so far took, or was
    predicted to take. Then the fastest stays.

    found: the predictions, in order. measured: the seconds of each plan that has run, by its words.
    """
    ran = [each for each in found if each.words in measured]
    if not ran:
        return found[0], None
    fastest = min(ran, key=lambda each: measured[each.words])
    near = NEAR * max(measured[fastest.words], fastest.seconds)
    others = [each for each in found if each.fits and each not in ran and each.seconds < near]
    count = len({each.words for each in ran})
    if others and count < TRIED:
        return others[0], (count + 1, min(TRIED, count + len(others)))
    return fastest, None
