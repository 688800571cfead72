"""Finds what would fit if a plan does not: other weights, another plan for the ranks here, or a smaller picture.

Each remedy is estimated with the same sizes as the plan itself, and listed only if it fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...parallel_backend.axes import REPLICA_AXES
from ...parallel_backend.costs.choose import Check, allows
from ...parallel_backend.plan import AUTO, WHOLE, ParallelPlan
from ...parallel_backend.weights.fitting import count_host_bytes
from ...parallel_backend.weights.sizes import FETCHED, WeightSizes
from ..plan_words import Remark, remark
from ..workers.group import most_ranks
from ..workers.room import room_for_weights
from .memory_estimate import MemoryEstimate, Picture

FACTORS = range(2, 9)  # for how many times as many stages


def list_remedies(estimate: MemoryEstimate, check: Check) -> list[Remark]:
    """Lists each single change with which the plan would fit.

    If the plan fits only because weights are fetched, it lists what would let them be whole, and no lossy plan.
    check: of the model, the machine and the samplers.
    """
    only_whole = estimate.fits
    asked = replace(estimate.asked, weights=WHOLE, weight_blocks=0) if only_whole else estimate.asked
    found = [remark(key) for key, sizes in estimate.memory.smaller if fits(estimate, asked, sizes)]
    if only_whole:
        return found
    others = (replace(asked, weights=way, weight_blocks=0) for way in FETCHED)
    found += [remark(f"would_{each.weights}") for each in others if allows(check, each) and fits(estimate, each)]
    staged = (each for each in list_more_stages(asked) if allows(check, each) and fits(estimate, each))
    if plan := next(staged, None):
        found.append(remark("would_plan", plan=str(replace(plan, weights=AUTO))))
    return [*found, *suggest_picture(estimate, asked)]


def fits(estimate: MemoryEstimate, plan: ParallelPlan, sizes: WeightSizes | None = None) -> bool:
    """Whether a plan's ranks have enough memory for its kept weights and a forward. sizes: of the weights; the model's
    own by default."""
    memory = replace(estimate.memory, sizes=sizes or estimate.memory.sizes)
    other = MemoryEstimate.of(plan, memory, estimate.pictures, estimate.is_guided, estimate.group)
    room = room_for_weights(plan)
    return other.fits and (room is None or count_host_bytes(other.plan, memory.sizes) <= room.host)


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


def suggest_picture(estimate: MemoryEstimate, plan: ParallelPlan) -> list[Remark]:
    """Suggests one image at a time, or half its sides, if that fits."""
    for factor, images in ((1, 1), (2, 1)):
        pictures = [
            Picture(each.width // factor, each.height // factor, each.length, min(images, each.batch_size))
            for each in estimate.pictures
        ]
        if pictures and pictures != [*estimate.pictures]:
            other = MemoryEstimate.of(plan, estimate.memory, pictures, estimate.is_guided, estimate.group)
            if other.fits:
                largest = max(pictures, key=lambda each: each.width * each.height)
                return [remark("would_picture", width=largest.width, height=largest.height, images=largest.batch_size)]
    return []
