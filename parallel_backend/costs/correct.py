"""Predictions of a model at one size, corrected by the steps that were measured of it.

What a step took is the ranks' to tell, computing and communication apart. A plan that has run is predicted to take what
it took; for the others, both parts are off by as much as they were for it. Where next to nothing was to be sent, and
ranks waited all the same, it is for each other, which they do under any plan in which they exchange something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .machine import parse_positive
from .predict import Prediction

SHARE = 0.05  # of a predicted step, from which what is sent is taken for the reason of waiting
# Of the time of the best plan that has run, what another is predicted to take at most to be tried: until so many have
# run, as predictions of like plans are not nearer than that, and from then on.
NEAR, TRIED, WORTH = 1.1, 3, 0.95


@dataclass(frozen=True)
class Correction:
    """computing, waiting: how many times as long as predicted. stall: seconds that ranks wait for each other beside.
    plans: seconds of each that has run, by its words."""

    computing: float = 1.0
    waiting: float = 1.0
    stall: float = 0.0
    plans: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def correct(self, predicted: Prediction) -> Prediction:
        """A prediction as it is corrected."""
        stall = self.stall if predicted.waiting else 0.0
        expected = (predicted.computing * self.computing, predicted.waiting * self.waiting + stall)
        computing, waiting = self.plans.get(str(predicted.plan), expected)
        return replace(predicted, computing=computing, waiting=waiting)

    def add_step(self, predicted: Prediction, seconds: float, communication: float) -> Correction:
        """After a step of this plan. predicted: as it was before any correction."""
        waiting = min(communication, seconds)
        computing = seconds - waiting
        taken = {**self.plans, str(predicted.plan): (computing, waiting)}
        factor, stall = self.waiting, self.stall
        if predicted.waiting >= SHARE * predicted.seconds:
            factor, stall = waiting / predicted.waiting, 0.0
        elif predicted.waiting:
            stall = max(0.0, waiting - predicted.waiting * factor)
        return Correction(computing / predicted.computing, factor, stall, taken)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Correction:
        """Raises KeyError, TypeError or ValueError for what is none."""
        plans = {str(plan): (float(taken[0]), float(taken[1])) for plan, taken in values["plans"].items()}
        return cls(parse_positive(values["computing"]), float(values["waiting"]), float(values["stall"]), plans)

    def to_json(self) -> dict[str, Any]:
        return {"computing": self.computing, "waiting": self.waiting, "stall": self.stall, "plans": dict(self.plans)}


def choose_prediction(found: Sequence[Prediction], correction: Correction) -> Prediction:
    """Of corrected predictions, the best first, the one to run: the best that has run, once others that may be as fast
    have been tried."""
    alike = [each for each in found if each.fits == found[0].fits]
    has_run, others = ([each for each in alike if (str(each.plan) in correction.plans) == ran] for ran in (True, False))
    if not has_run or not others:
        return alike[0]
    limit = NEAR if len(has_run) < TRIED else WORTH
    return others[0] if others[0].seconds < limit * has_run[0].seconds else has_run[0]
