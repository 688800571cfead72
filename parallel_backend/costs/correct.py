"""Corrects the predictions for a model at one size by the steps measured so far.

The ranks report how long a step took, computing and communication apart. A plan that has run is predicted to take as
long again. For other plans, both parts are scaled by the same error. If a plan sends next to nothing, its ranks only
wait for each other. They do so under any plan with communication. A pipeline of stages waits for other reasons, so its
steps correct the predictions of pipelines only. Steps with sparse attention, whose kernel is another, correct those of
their own plan only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..plan import OFF
from .machine import parse_positive
from .predict import Prediction

SHARE = 0.05  # of a predicted step: from this share on, waiting is ascribed to what is sent
# A plan is tried if its predicted time is below this share of the best plan's measured time: NEAR until TRIED plans
# have run, because predictions of like plans differ by that much, and WORTH from then on.
NEAR, TRIED, WORTH = 1.1, 3, 0.95


@dataclass(frozen=True)
class Correction:
    """computing, waiting: how many times as long as predicted.
    stall: seconds that ranks wait for each other on top.
    plans: the seconds of each plan that has run, by its words.
    staged: how many times as long as predicted a step of a pipeline takes; 0 before one has run."""

    computing: float = 1.0
    waiting: float = 1.0
    stall: float = 0.0
    plans: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    staged: float = 0.0

    def correct(self, predicted: Prediction) -> Prediction:
        """Returns the corrected prediction."""
        stall = self.stall if predicted.waiting else 0.0
        expected = (predicted.computing * self.computing, predicted.waiting * self.waiting + stall)
        if predicted.is_staged and self.staged:
            expected = (predicted.computing * self.staged, predicted.waiting * self.staged)
        computing, waiting = self.plans.get(predicted.words, expected)
        longer = (computing + waiting) / predicted.seconds
        return replace(predicted, computing=computing, waiting=waiting, whole=predicted.whole * longer)

    def add_step(self, predicted: Prediction, seconds: float, communication: float) -> Correction:
        """Returns the correction after one more step of this plan. predicted: the prediction before any correction."""
        waiting = min(communication, seconds)
        computing = seconds - waiting
        taken = {**self.plans, predicted.words: (computing, waiting)}
        if predicted.plan.sparse != OFF:
            return replace(self, plans=taken)
        if predicted.is_staged:
            return replace(self, plans=taken, staged=seconds / predicted.seconds)
        factor, stall = self.waiting, self.stall
        if predicted.waiting >= SHARE * predicted.seconds:
            factor, stall = waiting / predicted.waiting, 0.0
        elif predicted.waiting:
            stall = max(0.0, waiting - predicted.waiting * factor)
        return Correction(computing / predicted.computing, factor, stall, taken, self.staged)

    def least_seconds(self, corrected: Prediction) -> float:
        """Returns the seconds of a plan that shares no tokens, from its corrected prediction, if the plans that share
        them computed for longer than predicted only because they share them. Of that, half is assumed."""
        return corrected.computing / math.sqrt(max(1.0, self.computing)) + corrected.waiting

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Correction:
        """Raises KeyError, TypeError or ValueError if the values are not a correction."""
        plans = {str(plan): (float(taken[0]), float(taken[1])) for plan, taken in values["plans"].items()}
        numbers = (float(values["waiting"]), float(values["stall"]), plans, float(values.get("staged", 0.0)))
        return cls(parse_positive(values["computing"]), *numbers)

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"plans": dict(self.plans)}


def choose_prediction(found: Sequence[Prediction], correction: Correction) -> Prediction:
    """Chooses the prediction to run from corrected ones, the best first. It is the best plan that has run, once the
    plans that may be as fast have been tried. Plans without shared tokens get more of the doubt,
    see `least_seconds`."""
    alike = [each for each in found if each.fits == found[0].fits]
    has_run, others = ([each for each in alike if (each.words in correction.plans) == ran] for ran in (True, False))
    if not has_run or not others:
        return alike[0]
    best = has_run[0]
    limit = NEAR if len(has_run) < TRIED else WORTH
    if others[0].seconds < limit * best.seconds:
        return others[0]
    if all(each.plan.token_ways > 1 for each in has_run):
        unshared = [each for each in others if each.plan.token_ways == 1]
        return next((each for each in unshared if correction.least_seconds(each) < NEAR * best.seconds), best)
    return best
