"""Corrects the predictions for a model at one size by the steps measured so far.

The ranks report how long a step took, computing and communication apart. A plan that has run is predicted to take as
long again. For other plans, both parts are scaled by the same error. If a plan sends next to nothing, its ranks only
wait for each other. They do so under any plan with communication. A pipeline of stages waits for other reasons, so its
steps correct the predictions of pipelines only. Steps with sparse attention, whose kernel is another, correct those of
their own plan only; so do those of one device, once ranks have shared the work and may have slowed each other down.

Two measurements of one plan differ, too. So the plan that ran last stays unless another is faster by more than that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..plan import OFF, ParallelPlan
from .machine import parse_positive
from .predict import Prediction

SHARE = 0.05  # of a predicted step: from this share on, waiting is ascribed to what is sent
# A plan is tried if its predicted time is below this share of the best plan's measured time: NEAR until TRIED plans
# have run, because predictions of like plans differ by that much, and WORTH from then on.
NEAR, TRIED, WORTH = 1.1, 3, 0.95
# The share by which measurements of one plan differ: assumed before a plan has run twice, and the bounds.
SPREAD, LEAST_SPREAD, MOST_SPREAD = 0.05, 0.02, 0.2
# The rules that choose a plan, see `Choice`.
FASTEST, MEASURED, KEPT, TRIED_NEXT, DOUBTED, LEAST = "fastest", "measured", "kept", "tried", "doubted", "least"
STAYED = "stayed"


@dataclass(frozen=True)
class Correction:
    """computing, waiting: how many times as long as predicted.
    stall: seconds that ranks wait for each other on top.
    plans: the seconds of each plan that has run, by its words, in the order of their last runs.
    staged: how many times as long as predicted a step of a pipeline takes; 0 before one has run.
    spread: the share by which measurements of one plan differ. It grows at once, and halves with each that agrees."""

    computing: float = 1.0
    waiting: float = 1.0
    stall: float = 0.0
    plans: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    staged: float = 0.0
    spread: float = SPREAD

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
        others = {words: parts for words, parts in self.plans.items() if words != predicted.words}
        taken = {**others, predicted.words: (computing, waiting)}
        noted = replace(self, plans=taken, spread=self.widen_spread(predicted.words, seconds))
        if predicted.plan.sparse != OFF or predicted.is_alone and len(taken) > 1:
            return noted
        if predicted.is_staged:
            return replace(noted, staged=seconds / predicted.seconds)
        factor, stall = self.waiting, self.stall
        if predicted.waiting >= SHARE * predicted.seconds:
            factor, stall = waiting / predicted.waiting, 0.0
        elif predicted.waiting:
            stall = max(0.0, waiting - predicted.waiting * factor)
        return replace(noted, computing=computing / predicted.computing, waiting=factor, stall=stall)

    def widen_spread(self, words: str, seconds: float) -> float:
        """Returns the spread after a plan took these seconds again, or for the first time."""
        if words not in self.plans:
            return self.spread
        before = sum(self.plans[words])
        change = abs(seconds - before) / max(seconds, before)
        return min(MOST_SPREAD, max(LEAST_SPREAD, change, self.spread / 2))

    def weigh(self, corrected: Prediction) -> float:
        """Returns the factor for a plan's seconds when it is compared with others: below 1 for the plan that ran
        last."""
        return 1 - self.spread if [corrected.words] == [*self.plans][-1:] else 1.0

    def least_seconds(self, corrected: Prediction) -> float:
        """Returns the seconds of a plan that shares no tokens, from its corrected prediction, if the plans that share
        them computed for longer than predicted only because they share them. Of that, half is assumed."""
        return corrected.computing / math.sqrt(max(1.0, self.computing)) + corrected.waiting

    def first_seconds(self, corrected: Prediction) -> float:
        """Returns the seconds of one device before any plan computed for longer than predicted, from its corrected
        prediction. If the fastest plan that has run takes longer, its ranks may slow each other down."""
        return corrected.computing / max(1.0, self.computing) + corrected.waiting

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Correction:
        """Raises KeyError, TypeError or ValueError if the values are not a correction."""
        plans = {str(plan): (float(taken[0]), float(taken[1])) for plan, taken in values["plans"].items()}
        staged, spread = float(values.get("staged", 0.0)), parse_positive(values.get("spread", SPREAD))
        numbers = (float(values["waiting"]), float(values["stall"]), plans, staged, spread)
        return cls(parse_positive(values["computing"]), *numbers)

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"plans": dict(self.plans)}


class Choice(NamedTuple):
    """The plan to run, and the rule that chose it: `FASTEST` by prediction, `MEASURED` the fastest that has run,
    `KEPT` as `MEASURED`, though another is predicted to be a little faster, `STAYED` since it ran last, though another
    was measured a little faster, `TRIED_NEXT` since it may be as fast as the fastest that has run, `DOUBTED` since it
    shares less, and plans that share more computed for longer than predicted, `LEAST` since nothing fits. best: the
    plan that it is compared with, under the last five of these. tried: which of how many plans this is, while plans are
    tried; else None."""

    prediction: Prediction
    why: str
    best: Prediction
    tried: tuple[int, int] | None = None

    @property
    def plan(self) -> ParallelPlan:
        return self.prediction.plan


def choose_prediction(found: Sequence[Prediction], correction: Correction) -> Choice:
    """Chooses the prediction to run from corrected ones, the best first. It is the fastest plan that has run, once the
    plans that may be as fast have been tried. Plans that share less get more of the doubt, see `least_seconds` and
    `first_seconds`. A plan that has run counts as one that fits. The plan that ran last stays, see `weigh`, but not if
    one device was faster."""
    ran = [each for each in found if each.words in correction.plans]
    others = [each for each in found if each.fits and each not in ran]
    if not ran:
        return Choice(found[0], FASTEST if found[0].fits else LEAST, found[0])
    best = min(ran, key=lambda each: each.seconds)
    near = [each for each in others if each.seconds < NEAR * best.seconds]
    count = len({each.words for each in ran})
    tried = count + 1, max(count + 1, min(TRIED, count + len(near)))
    if others and others[0].seconds < (NEAR if count < TRIED else WORTH) * best.seconds:
        return Choice(others[0], TRIED_NEXT, best, tried)
    shared = all(each.plan.token_ways > 1 for each in ran)
    is_first_alone = not any(each.is_alone for each in ran)
    for each in others:
        whole = shared and each.plan.token_ways == 1 and correction.least_seconds(each) < NEAR * best.seconds
        if whole or is_first_alone and each.is_alone and correction.first_seconds(each) < best.seconds:
            return Choice(each, DOUBTED, best, tried)
    kept = min(ran, key=lambda each: each.seconds * correction.weigh(each))
    if kept.seconds > min((each.seconds for each in ran if each.is_alone), default=kept.seconds):
        kept = best
    if kept.seconds > best.seconds:
        return Choice(kept, STAYED, best)
    if near and near[0].seconds < kept.seconds:
        return Choice(kept, KEPT, near[0])
    return Choice(kept, MEASURED, kept)
