"""Predicts the step of a plan, of the best plans and of one device, and says what auto chooses by that."""

from __future__ import annotations

from typing import Any

from ...parallel_backend.costs.roofline import Prediction
from ...parallel_backend.plan import ParallelPlan
from ..costs.plans import ONE_DEVICE
from ..parallel_plan import choose_plan
from ..plan_words import Remark, ResolvedPlan, remark
from ..workers.group import device_count
from .memory_estimate import MemoryEstimate
from .question import Sampled

BEST = 3  # plans to show


def expect_plan(sampled: Sampled) -> tuple[ResolvedPlan, list[Remark]]:
    """Returns the automatic plan that a sampling will use, and the reasons for it. If guidance is unknown, it is the
    plan for cond and uncond, which is the larger work, and a reason says so."""
    question, resolved = sampled.question, choose_plan(sampled.largest_work, sampled.file.costs)
    why, resolved = resolved.note, resolved._replace(note=())
    if question.guided is False:  # then it is known why there is one pass
        why = tuple(remark("no_branches") if each.key == "one_pass" else each for each in why)
    if device_count() == 1:
        return resolved, [*why]
    if question.guided is None:
        why = (*why, remark("counted_guided"))
    if (picture := sampled.largest) is None:
        return resolved, [*why, *([remark("images_first")] if resolved.plan.dp == 1 else [])]
    size = " × ".join(map(str, (picture.width, picture.height, *([picture.length] if picture.length > 1 else []))))
    key = {None: "for_this", True: "for_guided", False: "for_unguided"}[question.guided]
    return resolved, [*why, remark(key, size=size, images=picture.batch_size)]


def predict_plans(plan: ParallelPlan, sampled: Sampled) -> dict[str, Any] | None:
    """Predicts the step of several plans. Returns None if it is unknown what is sampled.

    plan: this plan.
    best: the best plans for this machine.
    one_device: one device.
    Each has its words, values, seconds, the bytes that it needs in the place with the least memory left and whether
    they fit, whether it has run and took that long, and whether it is one device alone.
    is_measured: whether this machine was measured.
    """
    costs, work = sampled.file.costs, sampled.largest_work
    if work.forward is None:
        return None

    def describe(predicted: Prediction) -> dict[str, Any]:
        tight = MemoryEstimate.of(predicted.plan, sampled).tight
        return {
            "plan": str(predicted.plan),
            "values": predicted.plan.to_json(),
            "seconds": predicted.seconds,
            "bytes": tight.needs,
            "fits": tight.fits is not False,
            "has_run": predicted.has_run,
            "is_alone": predicted.is_alone,
        }

    found, _ = costs.order_plans(work)
    return {
        "plan": describe(costs.predict(work, plan)),
        "best": [describe(each) for each in found[:BEST]],
        "one_device": describe(costs.predict(work, ONE_DEVICE)),
        "is_measured": costs.is_measured,
    }
