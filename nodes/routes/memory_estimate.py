"""Estimates, before anything is queued, what a plan's ranks keep of a model's weights, need at their peak and fetch.

The figures come from file headers, ComfyUI's own estimate of a forward, and what a worker group reported. Assumed
figures are marked as such.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import comfy.model_management
import torch

from ...parallel_backend.axes import BATCH_AXES
from ...parallel_backend.costs.memory import call_bytes
from ...parallel_backend.device import CPU, Card
from ...parallel_backend.errors import format_bytes
from ...parallel_backend.groups.communicators import count_communicator_bytes
from ...parallel_backend.groups.mesh_layout import rank_parts
from ...parallel_backend.plan import AUTO, WHOLE, ParallelPlan
from ...parallel_backend.weights.fitting import ASSUMED, OF_HOST, WeightRoom, count_host_bytes
from ...parallel_backend.weights.sizes import FETCHED, WeightSizes, fetched_blocks
from ..costs.forward import packed_shape
from ..plan_words import Remark, format_seconds, remark
from ..workers.group import device_type, last_status, settings
from ..workers.room import balance_stages, expect_weights, list_plan_cards, room_for_weights, usable_bytes
from .question import Sampled


def estimate_working_bytes(plan: ParallelPlan, sampled: Sampled) -> float | None:
    """Returns what the largest picture needs on a rank beside the weights; None if unknown."""
    known, model, sizes = [], sampled.file.model, sampled.file.sizes
    for picture in sampled.question.pictures:
        if shape := sampled.latents(picture):
            rows = shape[0] * (1 + sampled.question.may_guide)
            latents, dtype = [rows, *shape[1:]], model.get_dtype_inference()
            whole = model.memory_required(packed_shape(model.diffusion_model, latents))
            known.append(call_bytes(whole, latents, model.diffusion_model, plan, sizes, dtype))
    return max(known, default=None)


class MemoryPlace(NamedTuple):
    """needs, usable: bytes of a rank's card, or of RAM (card is None). is_partial: whether ComfyUI loads weights in
    part."""

    needs: int
    usable: int
    card: Card | None
    is_partial: bool = False

    @property
    def fits(self) -> bool | None:
        """None where ComfyUI's partial loading handles what does not fit."""
        return self.needs <= self.usable or (None if self.card and self.is_partial else False)

    def to_json(self) -> dict[str, Any]:
        card = self.card and {"index": self.card.index, "name": self.card.name}
        return {"needs": self.needs, "usable": max(0, self.usable), "card": card, "fits": self.fits}


@dataclass(frozen=True)
class MemoryEstimate:
    """What a plan's ranks keep, need and fetch.

    asked: the plan as requested.
    plan: the plan with its weights as expected.
    working: what the rank with the most needs for what is sampled beside the weights, in bytes; None if unknown.
    room: None on the CPU.
    """

    asked: ParallelPlan
    plan: ParallelPlan
    sampled: Sampled
    working: float | None
    room: WeightRoom | None

    @classmethod
    def of(cls, plan: ParallelPlan, sampled: Sampled) -> MemoryEstimate:
        sizes = sampled.file.sizes
        plan = balance_stages(plan, sizes)
        on_cpu = device_type() == CPU  # ComfyUI's estimate is not made for the CPU
        working = None if on_cpu else estimate_working_bytes(plan, sampled)
        room = room_for_weights(plan, working or 0)
        return cls(plan, expect_weights(plan, sizes, room), sampled, working, room)

    @property
    def sizes(self) -> WeightSizes:
        return self.sampled.file.sizes

    def count_ram(self) -> int:
        """Returns the bytes of weights in this machine's RAM: of all its CPU ranks, and those that wait there for
        GPUs."""
        waiting = count_host_bytes(self.plan, self.sizes)
        if device_type() != CPU:
            return waiting
        kept, stages = self.sizes.count_resident_bytes(self.plan), self.list_stages()
        here = stages[: math.ceil(len(stages) / max(1, len(settings().machines)))]
        return waiting + sum(kept[stage] for stage in here)

    def list_stages(self) -> list[int]:
        """Returns each rank's stage."""
        return [part.stage[0] for part in rank_parts(self.plan)]

    def list_places(self) -> list[MemoryPlace]:
        """Returns what the plan needs in each place, communicators included, and what is usable there: of each rank's
        card, and of RAM."""
        kept, working = self.sizes.count_resident_bytes(self.plan), math.ceil(self.working or 0)
        beside = count_communicator_bytes(self.plan) + working
        found = [
            MemoryPlace(kept[stage] + beside, usable_bytes(card, working) + working, card, not self.sizes.blocks)
            for card, stage in zip(list_plan_cards(self.plan), self.list_stages(), strict=False)
        ]
        if in_ram := self.count_ram():
            total: Any = comfy.model_management.get_total_memory(torch.device(CPU))
            found.append(MemoryPlace(in_ram, int(OF_HOST * total), None))
        return found

    @property
    def tight(self) -> MemoryPlace:
        """The place with the least memory left."""
        return min(self.list_places(), key=lambda place: place.usable - place.needs)

    def fits_by_rank(self) -> list[bool | None]:
        """Whether each rank's card on this machine has enough memory, see `MemoryPlace.fits`. It needs the rank's kept
        weights, a forward, and what ComfyUI keeps free. The list is empty on the CPU."""
        return [place.fits for place in self.list_places() if place.card]

    @property
    def fits(self) -> bool:
        """Whether every known card has enough memory, and RAM has."""
        return all(place.fits for place in self.list_places())

    @property
    def is_fetched_by_auto(self) -> bool:
        """Whether weights are fetched only because whole ones do not fit."""
        return self.asked.weights == AUTO and self.plan.weights in FETCHED

    def to_json(self) -> dict[str, Any]:
        """tight: the place with the least memory left: its `needs` and `usable` bytes, its `card` (index and name; null
        for RAM), and `fits`.
        kept: bytes of weights at rest on a rank, by stage.
        working: bytes of a forward; null if unknown.
        fetched: bytes that a rank fetches in a forward.
        fits: see `fits_by_rank`."""
        return {
            "tight": self.tight.to_json(),
            "kept": self.sizes.count_resident_bytes(self.plan),
            "working": self.working and math.ceil(self.working),
            "fetched": self.sizes.count_fetched_bytes(self.plan),
            "fits": self.fits_by_rank(),
        }

    def remarks(self, computing: float = 0) -> list[Remark]:
        """Says what is fetched, how long that takes, how often and why. Also says what does not fit. computing: seconds
        of a step; 0 if unknown."""
        if self.plan.weights not in FETCHED:
            is_in_part = not self.sizes.blocks and not all(self.fits_by_rank())  # by ComfyUI's own loading
            return [remark("partly_in_ram")] if is_in_part else []
        stages = self.sizes.by_stage(self.plan)
        size = format_bytes(self.sizes.count_fetched_bytes(self.plan))
        going, blocks = max((len(fetched_blocks(stage, self.plan)), len(stage)) for stage in stages)
        found = [remark(f"weights_{self.plan.weights}", going=going, blocks=blocks, size=size)]
        found += [self.explain_fetching(self.room)] if self.is_fetched_by_auto and self.room else []
        found += self.explain_link(computing) if device_type() != CPU else []
        return [*found, self.explain_forwards()]

    def explain_link(self, computing: float) -> list[Remark]:
        """Says how long the weights take on the link, and whether that exceeds the computing time."""
        reported = last_status(self.sampled.question.group).get("weights") or {}
        is_measured = reported.get("kind") == self.plan.weights
        rate = reported["link"] if is_measured else ASSUMED.of(self.plan.weights)
        needed = self.sizes.count_fetched_bytes(self.plan) / rate
        key = "link_measured" if is_measured else "link_assumed"
        found = [remark(key, rate=f"{rate / 1e9:.1f} GB/s", seconds=format_seconds(needed))]
        if computing and needed > computing:
            found.append(remark("link_slower", computing=format_seconds(computing)))
        return found

    def explain_forwards(self) -> Remark:
        """Says how often a step fetches them."""
        if self.plan.patch_count > 1:
            return remark("forward_a_patch", patches=self.plan.patch_count)
        if not self.sampled.question.may_guide or self.plan.ways(BATCH_AXES) > 1:
            return remark("one_forward")
        return remark("forwards")

    def explain_fetching(self, room: WeightRoom) -> Remark:
        """Says why weights=auto fetches them."""
        whole = format_bytes(max(self.sizes.count_resident_bytes(replace(self.plan, weights=WHOLE))))
        plan = str(replace(self.plan, weights=AUTO, weight_blocks=0))
        return remark("whole_does_not_fit", whole=whole, room=format_bytes(room.device), plan=plan)
