"""Estimates, before anything is queued, what a plan's ranks keep of a model's weights, need at their peak and fetch.

The figures come from file headers, ComfyUI's own estimate of a forward, and what a worker group reported. Assumed
figures are marked as such.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import comfy.model_base
import comfy.model_management
import torch

from ...parallel_backend.axes import BATCH_AXES, STAGE_AXES
from ...parallel_backend.costs.memory import rank_bytes, stale_bytes
from ...parallel_backend.device import CPU, Card
from ...parallel_backend.groups.communicators import count_communicator_bytes
from ...parallel_backend.groups.mesh_layout import joint_place, largest_rows, places_of_ranks
from ...parallel_backend.models.checks import count_tokens
from ...parallel_backend.plan import AUTO, WHOLE, ParallelPlan
from ...parallel_backend.weights.fitting import ASSUMED, OF_HOST, WeightRoom, count_host_bytes
from ...parallel_backend.weights.sizes import FETCHED, WeightSizes, fetched_places
from ..costs.forward import packed_shape
from ..plan_words import Remark, format_bytes, format_seconds, remark
from ..workers.group import device_type, last_status, settings
from ..workers.room import balance_stages, expect_weights, list_plan_cards, room_for_weights, usable_bytes


class Picture(NamedTuple):
    """What is sampled, in the fields of an empty latent's node: pixels, frames and count."""

    width: int
    height: int
    length: int = 1
    batch_size: int = 1


@dataclass(frozen=True)
class ModelMemory:
    """sizes: of the weights, in the dtype in which they are loaded.
    model: ComfyUI's model without its weights.
    smaller: the weights' sizes in smaller dtypes, each with the key of its remark."""

    sizes: WeightSizes
    model: comfy.model_base.BaseModel
    smaller: tuple[tuple[str, WeightSizes], ...] = ()

    def latents(self, picture: Picture) -> list[int] | None:
        """Returns the shape of a picture's latents, (B, C, H, W) or (B, C, F, H, W). Returns None for other dims."""
        of = self.model.latent_format
        if of.latent_dimensions not in (2, 3):
            return None
        frames = [(picture.length - 1) // of.temporal_downscale_ratio + 1] if of.latent_dimensions == 3 else []
        sides = [size // of.spacial_downscale_ratio for size in (picture.height, picture.width)]
        return [picture.batch_size, of.latent_channels, *frames, *sides]


def estimate_working_bytes(
    plan: ParallelPlan, memory: ModelMemory, pictures: Sequence[Picture], rows: int
) -> float | None:
    """Returns what the largest of these pictures needs on a rank beside the weights; None if unknown. rows: a forward's
    rows for each image: one, or two with guidance."""
    known, model = [], memory.model
    for picture in pictures:
        if shape := memory.latents(picture):
            all_rows = rows * shape[0]
            tokens = count_tokens(model.diffusion_model, [largest_rows(plan, all_rows), *shape[1:]])
            kept = stale_bytes(model.diffusion_model, plan, memory.sizes, model.get_dtype_inference(), tokens)
            whole = model.memory_required(packed_shape(model.diffusion_model, [all_rows, *shape[1:]]))
            known.append(rank_bytes(whole, all_rows, plan) + kept)
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
    pictures: what is sampled, as far as known.
    working: what the rank with the most needs for them beside the weights, in bytes; None if unknown.
    room: None on the CPU.
    group: the number of the worker group that will hold the model.
    """

    asked: ParallelPlan
    plan: ParallelPlan
    memory: ModelMemory
    pictures: tuple[Picture, ...]
    is_guided: bool
    working: float | None
    room: WeightRoom | None
    group: int

    @classmethod
    def of(
        cls, plan: ParallelPlan, memory: ModelMemory, pictures: Sequence[Picture], is_guided: bool, group: int
    ) -> MemoryEstimate:
        """is_guided: whether cond and uncond are computed, or may be."""
        plan = balance_stages(plan, memory.sizes)
        on_cpu = device_type() == CPU  # ComfyUI's estimate is not made for the CPU
        working = None if on_cpu else estimate_working_bytes(plan, memory, pictures, 2 if is_guided else 1)
        room = room_for_weights(plan, working or 0)
        expected = expect_weights(plan, memory.sizes, room)
        return cls(plan, expected, memory, (*pictures,), is_guided, working, room, group)

    def count_ram(self) -> int:
        """Returns the bytes of weights in this machine's RAM: of all its CPU ranks, and those that wait there for
        GPUs."""
        waiting = count_host_bytes(self.plan, self.memory.sizes)
        if device_type() != CPU:
            return waiting
        kept, stages = self.memory.sizes.count_kept_bytes(self.plan), self.list_stages()
        here = stages[: math.ceil(len(stages) / max(1, len(settings().machines)))]
        return waiting + sum(kept[min(stage, len(kept) - 1)] for stage in here)

    def list_stages(self) -> list[int]:
        """Returns each rank's stage."""
        degrees = self.plan.degrees()
        return [joint_place(STAGE_AXES, degrees, places) for places in places_of_ranks(self.plan)]

    def list_places(self) -> list[MemoryPlace]:
        """Returns what the plan needs in each place, communicators included, and what is usable there: of each rank's
        card, and of RAM."""
        kept, working = self.memory.sizes.count_kept_bytes(self.plan), math.ceil(self.working or 0)
        beside = count_communicator_bytes(self.plan) + working
        found = [
            MemoryPlace(
                kept[min(stage, len(kept) - 1)] + beside,
                usable_bytes(card, working) + working,
                card,
                is_partial=not self.memory.sizes.blocks,
            )
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
        sizes = self.memory.sizes
        return {
            "tight": self.tight.to_json(),
            "kept": sizes.count_kept_bytes(self.plan),
            "working": self.working and math.ceil(self.working),
            "fetched": sizes.count_fetched_bytes(self.plan),
            "fits": self.fits_by_rank(),
        }

    def remarks(self, computing: float = 0) -> list[Remark]:
        """Says what is fetched, how long that takes, how often and why. Also says what does not fit. computing: seconds
        of a step; 0 if unknown."""
        if self.plan.weights not in FETCHED:
            return self.explain_partial_loading()
        stages = self.memory.sizes.by_stage(self.plan)
        size = format_bytes(self.memory.sizes.count_fetched_bytes(self.plan))
        going, blocks = max((len(fetched_places(stage, self.plan)), len(stage)) for stage in stages)
        found = [remark(f"weights_{self.plan.weights}", going=going, blocks=blocks, size=size)]
        found += self.explain_fetching() if self.asked.weights == AUTO else []
        found += self.explain_link(computing) if device_type() != CPU else []
        return [*found, self.explain_forwards()]

    def explain_link(self, computing: float) -> list[Remark]:
        """Says how long the weights take on the link, and whether that exceeds the computing time."""
        reported = last_status(self.group).get("weights") or {}
        is_measured = reported.get("kind") == self.plan.weights and bool(reported.get("is_measured"))
        rate = reported["link"] if is_measured else ASSUMED.of(self.plan.weights)
        needed = self.memory.sizes.count_fetched_bytes(self.plan) / rate
        key = "link_measured" if is_measured else "link_assumed"
        found = [remark(key, rate=f"{rate / 1e9:.1f} GB/s", seconds=format_seconds(needed))]
        if computing and needed > computing:
            found.append(remark("link_slower", computing=format_seconds(computing)))
        return found

    def explain_forwards(self) -> Remark:
        """Says how often a step fetches them."""
        if self.plan.patch_count > 1:
            return remark("forward_a_patch", patches=self.plan.patch_count)
        if not self.is_guided or self.plan.ways(BATCH_AXES) > 1:
            return remark("one_forward")
        return remark("forwards")

    def explain_fetching(self) -> list[Remark]:
        """Says why weights=auto fetches them."""
        if self.room is None:
            return []
        whole = format_bytes(max(self.memory.sizes.count_kept_bytes(replace(self.plan, weights=WHOLE))))
        plan = str(replace(self.plan, weights=AUTO, weight_blocks=0))
        return [remark("whole_does_not_fit", whole=whole, room=format_bytes(self.room.device), plan=plan)]

    def explain_partial_loading(self) -> list[Remark]:
        """Says that ComfyUI keeps a part of the weights in RAM, if it does."""
        return [remark("partly_in_ram")] if not self.memory.sizes.blocks and not all(self.fits_by_rank()) else []
