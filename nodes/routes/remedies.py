"""Finds what would fit if a plan does not: other weights, another plan for the ranks here, or a smaller picture.

Each remedy is estimated with the same sizes as the plan itself, and listed only if it fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...parallel_backend.axes import REPLICA_AXES
from ...parallel_backend.plan import AUTO, WHOLE, ParallelPlan
from ...parallel_backend.weights.fitting import count_host_bytes
from ...parallel_backend.weights.sizes import FETCHED, sizes_in_fp8
from ..plan_words import Remark, remark
from ..workers.group import most_ranks
from .memory_estimate import MemoryEstimate
from .question import Sampled, runs_on_all_ranks

FACTORS = range(2, 9)  # for how many times as many stages


def list_remedies(estimate: MemoryEstimate) -> list[Remark]:
    """Lists each single change with which the plan would fit.

    If the plan fits only because weights are fetched, it lists what would let them be whole, and no lossy plan.
    """
    only_whole, sampled = estimate.fits, estimate.sampled
    asked = replace(estimate.asked, weights=WHOLE, weight_blocks=0) if only_whole else estimate.asked
    in_fp8 = sizes_in_fp8(sampled.file.module)
    smaller = sampled._replace(file=replace(sampled.file, sizes=in_fp8)) if in_fp8 else None
    found = [remark("would_fp8")] if smaller and fits(asked, smaller) else []
    if only_whole:
        return found
    others = (replace(asked, weights=way, weight_blocks=0) for way in FETCHED)
    found += [remark(f"would_{each.weights}") for each in others if runs(each, sampled)]
    if plan := next((each for each in list_more_stages(asked) if runs(each, sampled)), None):
        found.append(remark("would_plan", plan=str(replace(plan, weights=AUTO))))
    return [*found, *suggest_picture(sampled, asked)]


def runs(plan: ParallelPlan, sampled: Sampled) -> bool:
    return runs_on_all_ranks(plan, sampled) and fits(plan, sampled)


def fits(plan: ParallelPlan, sampled: Sampled) -> bool:
    """Whether a plan's ranks have enough memory for its kept weights and a forward."""
    estimate = MemoryEstimate.of(plan, sampled)
    kept, room = count_host_bytes(estimate.plan, estimate.sizes), estimate.room
    return estimate.fits and (room is None or kept <= room.host)


def list_more_stages(plan: ParallelPlan) -> Iterator[ParallelPlan]:
    """Yields plans with more pipeline stages, the fewest first. The ranks for them come from another axis, or are ranks
    that the plan does not use."""
    whole = replace(plan, weights=WHOLE, weight_blocks=0, speeds=())
    for factor in FACTORS:
        more = replace(whole, pipefusion=plan.pipefusion * factor)
        for other in REPLICA_AXES:
            if getattr(plan, other) % factor == 0:
                yield replace(more, **{other: getattr(plan, other) // factor})
        if more.world_size <= most_ranks():
            yield more


def suggest_picture(sampled: Sampled, plan: ParallelPlan) -> list[Remark]:
    """Suggests one image at a time, or half its sides, if that fits."""
    question = sampled.question
    for factor in (1, 2):
        samplers = [each.shrink(factor) for each in question.samplers]
        smaller = sampled._replace(question=question.model_copy(update={"samplers": samplers}))
        if smaller != sampled and MemoryEstimate.of(plan, smaller).fits:
            largest = max(smaller.question.pictures, key=lambda each: each.width * each.height)
            return [remark("would_picture", width=largest.width, height=largest.height, images=largest.batch_size)]
    return []
