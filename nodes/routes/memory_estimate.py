"""What a plan's ranks will keep of a model's weights, need at their peak and fetch, before anything is queued.

Read off headers of files, off ComfyUI's own estimate of what a forward takes, and off what a worker group has told.
What is assumed is called so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import comfy.model_base

from ...parallel_backend.axes import BATCH_AXES, STAGE_AXES, TOKEN_AXES
from ...parallel_backend.device import CPU
from ...parallel_backend.groups.mesh_layout import joint_place, largest_rows, largest_share, places_of_ranks
from ...parallel_backend.plan import AUTO, WHOLE, ParallelPlan
from ...parallel_backend.weights.fitting import ASSUMED, WeightRoom
from ...parallel_backend.weights.sizes import FETCHED, WeightSizes, fetched_places
from ..plan_words import Remark, gibibytes, remark, seconds
from ..workers.group import device_type, told_weights
from ..workers.room import cards_of, expected_weights, kept_free, room_for_weights, working_on_a_rank

# Of a card, for a guess of how long a forward computes: about what an RTX 4090 does with bf16.
ASSUMED_TERAFLOPS = 140
FLOPS_A_WEIGHT = 2  # and token: a product and a sum


class Picture(NamedTuple):
    """What is sampled, as an empty latent's node has it: pixels, frames, and how many of them."""

    width: int
    height: int
    length: int = 1
    batch_size: int = 1


@dataclass(frozen=True)
class ModelMemory:
    """sizes: of the weights, in the dtype in which they are loaded. parameters: how many. model: ComfyUI's, without its
    weights. patch: what of the latents is a token, over their last dims; empty where that is not known. smaller: their
    sizes in other dtypes that take less, each by the key of its remark."""

    sizes: WeightSizes
    parameters: int
    model: comfy.model_base.BaseModel
    patch: tuple[int, ...] = ()
    smaller: tuple[tuple[str, WeightSizes], ...] = ()

    def latents(self, picture: Picture) -> list[int] | None:
        """The shape of a picture's latents, (B, C, H, W) or (B, C, F, H, W); None for what has other dims."""
        of = self.model.latent_format
        if of.latent_dimensions not in (2, 3):
            return None
        frames = [(picture.length - 1) // of.temporal_downscale_ratio + 1] if of.latent_dimensions == 3 else []
        sides = [size // of.spacial_downscale_ratio for size in (picture.height, picture.width)]
        return [picture.batch_size, of.latent_channels, *frames, *sides]

    def tokens(self, latents: Sequence[int]) -> int:
        """How many tokens one image's latents are; 0 where that is not known."""
        sizes = latents[2:]
        patch = ((1,) * len(sizes) + self.patch)[-len(sizes) :]
        return math.prod(-(-size // side) for size, side in zip(sizes, patch, strict=True)) if self.patch else 0


class Work(NamedTuple):
    """A rank's part of a forward. working: bytes that it takes beside the weights. seconds: how long it computes on a
    card as assumed; 0 where that is not known."""

    working: float
    seconds: float


def work_of(plan: ParallelPlan, memory: ModelMemory, pictures: Sequence[Picture], rows: int) -> Work | None:
    """Of the largest of these pictures. rows: a forward's for each image, one or, with guidance, two."""
    known = []
    for picture in pictures:
        if shape := memory.latents(picture):
            all_rows = rows * shape[0]
            estimate = memory.model.memory_required([all_rows, *shape[1:]])
            tokens = memory.tokens(shape) * largest_rows(plan, all_rows) * largest_share(plan, TOKEN_AXES)
            products = FLOPS_A_WEIGHT * memory.parameters / plan.pipefusion * tokens
            known.append(Work(working_on_a_rank(estimate, all_rows, plan), products / ASSUMED_TERAFLOPS / 1e12))
    return max(known, default=None)


@dataclass(frozen=True)
class MemoryEstimate:
    """plan: with its weights as they are expected. asked: as it was asked for. pictures: what is sampled, as far as
    that is known. work: None where nobody knows. room: None on the CPU. group: of the worker group that is to hold the
    model."""

    asked: ParallelPlan
    plan: ParallelPlan
    memory: ModelMemory
    pictures: tuple[Picture, ...]
    is_guided: bool
    work: Work | None
    room: WeightRoom | None
    group: int

    @classmethod
    def of(
        cls, plan: ParallelPlan, memory: ModelMemory, pictures: Sequence[Picture], is_guided: bool, group: int
    ) -> MemoryEstimate:
        """is_guided: whether cond and uncond are computed, or may be."""
        on_cpu = device_type() == CPU  # for which ComfyUI's estimate is not made
        work = None if on_cpu else work_of(plan, memory, pictures, 2 if is_guided else 1)
        room = room_for_weights(plan, work.working if work else 0)
        expected = expected_weights(plan, memory.sizes, room)
        return cls(plan, expected, memory, (*pictures,), is_guided, work, room, group)

    @property
    def working(self) -> float:
        """Bytes of a forward, as far as that is known."""
        return self.work.working if self.work else 0

    def fits_by_rank(self) -> list[bool]:
        """Whether the card of each of this machine's ranks has room for what the rank keeps of the weights, for a
        forward, and for what ComfyUI keeps free; nothing on the CPU."""
        kept, free = self.memory.sizes.kept(self.plan), kept_free(self.working)
        degrees, cards = self.plan.degrees(), cards_of(self.plan)
        stages = (joint_place(STAGE_AXES, degrees, places) for places in places_of_ranks(self.plan)[: len(cards)])
        return [kept[min(stage, len(kept) - 1)] + free <= card.total for card, stage in zip(cards, stages, strict=True)]

    @property
    def fits(self) -> bool:
        """As far as the cards are known."""
        return all(self.fits_by_rank())

    @property
    def is_fetched_by_auto(self) -> bool:
        """Whether weights are fetched only because whole ones do not fit."""
        return self.asked.weights == AUTO and self.plan.weights in FETCHED

    def to_json(self) -> dict[str, Any]:
        """kept: bytes of weights at rest on a rank, by stage. working: those of a forward, null where it is not known.
        fetched: bytes that come to a rank in a forward. fits: see `fits_by_rank`; null where it does not, and ComfyUI's
        partial loading sees to it. reserve: bytes that ComfyUI keeps free of a card beside all that."""
        sizes, fits = self.memory.sizes, self.fits_by_rank()
        return {
            "kept": sizes.kept(self.plan),
            "working": self.work and math.ceil(self.work.working),
            "fetched": sizes.fetched(self.plan),
            "fits": [each if each or sizes.blocks else None for each in fits],
            "reserve": kept_free(self.working) - math.ceil(self.working) if fits else 0,
        }

    def remarks(self) -> list[Remark]:
        """What is fetched, how long that takes, how often and why; and what does not fit."""
        if self.plan.weights not in FETCHED:
            return self.too_large("whole_too_large" if self.memory.sizes.blocks else "partly_in_ram")
        stages, size = self.memory.sizes.by_stage(self.plan), gibibytes(self.memory.sizes.fetched(self.plan))
        going, blocks = max((len(fetched_places(stage, self.plan)), len(stage)) for stage in stages)
        said = [remark(f"weights_{self.plan.weights}", going=going, blocks=blocks, size=size)]
        said += self.why() if self.asked.weights == AUTO else []
        said += self.about_link() if device_type() != CPU else []
        return [*said, self.forwards(), *self.too_large("fetched_too_large")]

    def about_link(self) -> list[Remark]:
        """How long the weights are on their way, and whether that is longer than computing takes."""
        told = told_weights(self.group)
        is_measured = told.get("kind") == self.plan.weights and bool(told.get("is_measured"))
        rate = told["link"] if is_measured else ASSUMED.of(self.plan.weights)
        needed = self.memory.sizes.fetched(self.plan) / rate
        key = "link_measured" if is_measured else "link_assumed"
        said = [remark(key, rate=f"{rate / 1e9:.1f} GB/s", seconds=seconds(needed))]
        if self.work and self.work.seconds and needed > self.work.seconds:
            said.append(remark("link_slower", computing=seconds(self.work.seconds), teraflops=ASSUMED_TERAFLOPS))
        return said

    def forwards(self) -> Remark:
        """How often in a step."""
        if self.plan.patch_count > 1:
            return remark("forward_a_patch", patches=self.plan.patch_count)
        if not self.is_guided or self.plan.ways(BATCH_AXES) > 1:
            return remark("one_forward")
        return remark("forwards")

    def why(self) -> list[Remark]:
        """Why weights=auto has them fetched."""
        if self.room is None:
            return []
        whole = gibibytes(max(self.memory.sizes.kept(replace(self.plan, weights=WHOLE))))
        plan = str(replace(self.plan, weights=AUTO, weight_blocks=0))
        return [remark("whole_does_not_fit", whole=whole, room=gibibytes(self.room.device), plan=plan)]

    def too_large(self, key: str) -> list[Remark]:
        """What is said if they do not fit even so."""
        kept = max(self.memory.sizes.kept(self.plan))
        if self.room is None or kept <= self.room.device:
            return []
        return [remark(key, kept=gibibytes(kept), room=gibibytes(self.room.device))]
