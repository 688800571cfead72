"""Predicts the step of a plan, of the best plans and of one device, and says what auto chooses by that."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ...parallel_backend.costs.forward import Work
from ...parallel_backend.costs.roofline import Prediction
from ...parallel_backend.plan import ParallelPlan
from ..costs.plans import ModelCosts
from ..costs.reasons import RULES
from ..parallel_plan import choose_plan, explain_devices
from ..plan_words import Remark, ResolvedPlan, remark
from ..workers.group import device_count
from .memory_estimate import MemoryPlace, ModelMemory, Picture
from .question import Sampler

BEST = 3  # plans to show


class Sampled(NamedTuple):
    """What a model has to compute in a step, as far as the graph shows.

    costs: of its plans.
    picture: the largest one sampled; None if unknown.
    guided: whether both cond and uncond are computed; None if samplers differ or do not say.
    loops: whether the ranks run every sampler's loop.
    """

    costs: ModelCosts
    memory: ModelMemory
    picture: Picture | None
    guided: bool | None
    loops: bool = False

    @classmethod
    def of(cls, costs: ModelCosts, memory: ModelMemory, samplers: list[Sampler]) -> Sampled:
        shapes = {each.picture: memory.latents(each.picture) for each in samplers if each.picture}
        known = {picture: math.prod(shape) for picture, shape in shapes.items() if shape}
        guided = {None if each.cfg is None else each.cfg != 1 for each in samplers}
        largest = max(known, key=known.__getitem__, default=None)
        loops = bool(samplers) and not any(each.is_stock for each in samplers)
        return cls(costs, memory, largest, guided.pop() if len(guided) == 1 else None, loops)

    def work(self, guided: bool) -> Work:
        """Returns the work of a step, with the cost of a row if it can be counted."""
        shape = self.memory.latents(self.picture) if self.picture else None
        forward = self.costs.count_latents(shape) if shape else None
        images = self.picture.batch_size if self.picture else 1
        return self.costs.recall(Work((1 + guided) * images, has_branches=guided, forward=forward, loops=self.loops))


def expect_plan(sampled: Sampled) -> tuple[ResolvedPlan, list[Remark]]:
    """Returns the automatic plan that a sampling will use, and the reasons for it.

    If guidance is unknown and decides the plan, it returns the plan for cond and uncond, which is the larger work, and
    a note that says so.
    """
    works = {guided: sampled.work(guided) for guided in (False, True) if sampled.guided in (guided, None)}
    found = {guided: choose_plan(work, sampled.costs) for guided, work in works.items()}
    resolved = list(found.values())[-1]
    plan, why, resolved = resolved.plan, resolved.note, resolved._replace(note=())
    if sampled.guided is False:  # then it is known why there is one pass
        why = tuple(remark("no_branches") if each.key == "one_pass" else each for each in why)
    if len({each.plan for each in found.values()}) > 1:
        devices = explain_devices()
        either = remark("by_call", guided=str(plan), alone=str(found[False].plan))
        reasons = [each for each in why if each.key in RULES]
        remarks = [*devices, either, remark("counted_guided"), *explain_size(sampled), *reasons]
        return resolved, remarks
    if device_count() == 1:
        return resolved, [*why]
    if sampled.picture is None:
        return resolved, [*why, *([remark("images_first")] if plan.dp == 1 else [])]
    return resolved, [*why, *explain_size(sampled)]


def explain_size(sampled: Sampled) -> list[Remark]:
    """Says for which size, batch and guidance an automatic plan was chosen."""
    if (picture := sampled.picture) is None:
        return []
    size = " × ".join(map(str, (picture.width, picture.height, *([picture.length] if picture.length > 1 else []))))
    key = "for_this" if sampled.guided is None else "for_guided" if sampled.guided else "for_unguided"
    return [remark(key, size=size, images=picture.batch_size)]


def choose_patches(plan: ParallelPlan, sampled: Sampled) -> ParallelPlan:
    """Returns the plan with the number of patches that a sampling will choose, if it leaves that open."""
    return sampled.costs.choose_patches(sampled.work(sampled.guided is not False), plan)


def predict_computing(plan: ParallelPlan, sampled: Sampled) -> float:
    """Predicts how long a step of the plan computes; 0 if unknown."""
    costs, work = sampled.costs, sampled.work(sampled.guided is not False)
    return costs.predict(work, plan).computing if work.forward else 0.0


def predict_plans(
    plan: ParallelPlan, sampled: Sampled, place_of: Callable[[ParallelPlan], MemoryPlace]
) -> dict[str, Any] | None:
    """Predicts the step of several plans. Returns None if it is unknown what is sampled. place_of: returns the place
    where the least memory is left under a plan.

    plan: this plan.
    best: the best plans for this machine.
    one_device: one device.
    Each has its words, values, seconds, the bytes that it needs in that place and whether they fit, whether it has run
    and took that long, and whether it is one device alone.
    is_measured: whether this machine was measured.
    alone: whether one device is the fastest.
    """
    costs, work = sampled.costs, sampled.work(sampled.guided is not False)
    if work.forward is None:
        return None

    def describe(predicted: Prediction) -> dict[str, Any]:
        place = place_of(predicted.plan)
        return {
            "plan": str(predicted.plan),
            "values": predicted.plan.to_json(),
            "seconds": predicted.seconds,
            "bytes": place.needs,
            "fits": place.fits is not False,
            "has_run": predicted.has_run,
            "is_alone": predicted.is_alone,
        }

    found, _ = costs.rank_plans(work)
    return {
        "plan": describe(costs.predict(work, plan)),
        "best": [describe(each) for each in found[:BEST]],
        "one_device": describe(costs.predict(work, ParallelPlan())),
        "alone": found[0].is_alone and device_count() > 1,
        "is_measured": costs.is_measured,
    }
