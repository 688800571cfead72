"""What the editor asks about a plan: the node's values, and the model and sizes in the graph around it."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from ...parallel_backend.costs.forward import Work
from ...parallel_backend.errors import PlanError
from ...parallel_backend.plan import ParallelPlan
from ..model.host_file import HostFile
from ..parallel_plan import AUTO, MANUAL, fit_to_machine, resolve_plan
from ..plan_words import ResolvedPlan

MAX_ITEMS = 64
MAX_SIZE = 1 << 20  # of a picture, in pixels or frames
PARALLEL_SAMPLER = "ParallelDiT_Sampler"
Size = Annotated[int, Field(gt=0, le=MAX_SIZE)]


class FromPage(BaseModel):
    """A part of a question. Raises ValueError for other types of values than these."""

    model_config = ConfigDict(strict=True, frozen=True)


class Picture(FromPage, extra="forbid"):
    """What is sampled, in the fields of an empty latent's node: pixels, frames and count."""

    width: Size
    height: Size
    length: Size = 1
    batch_size: Size = 1


class Sampler(FromPage):
    """A node that samples with the model. cfg, picture: None if the editor cannot tell."""

    type: str
    cfg: float | None = None
    picture: Picture | None = None

    @property
    def is_stock(self) -> bool:
        return self.type != PARALLEL_SAMPLER

    def shrink(self, factor: int) -> Sampler:
        """Returns a node that samples a single picture with sides divided by the factor."""
        if (own := self.picture) is None:
            return self
        single = {"width": own.width // factor, "height": own.height // factor, "batch_size": 1}
        return self.model_copy(update={"picture": own.model_copy(update=single)})


class Question(FromPage):
    """values, group: of the node. files: that are chosen at the node that makes the model, by widget; empty if the
    editor cannot tell. weight_dtype: chosen there. samplers: that use the model."""

    values: dict[str, int | float | str]
    group: int = 1
    files: Annotated[dict[str, str], Field(max_length=MAX_ITEMS)] = {}
    weight_dtype: str = ""
    samplers: Annotated[list[Sampler], Field(max_length=MAX_ITEMS)] = []

    @property
    def mode(self) -> str:
        return str(self.values.get("mode"))

    @property
    def pictures(self) -> list[Picture]:
        """What is sampled, as far as known."""
        return [each.picture for each in self.samplers if each.picture]

    @property
    def guided(self) -> bool | None:
        """Whether both cond and uncond are computed; None if samplers differ or do not say."""
        found = {None if each.cfg is None else each.cfg != 1 for each in self.samplers}
        return found.pop() if len(found) == 1 else None

    @property
    def may_guide(self) -> bool:
        return self.guided is not False

    @property
    def loops(self) -> bool:
        """Whether the ranks run every sampler's loop."""
        return bool(self.samplers) and not any(each.is_stock for each in self.samplers)


def read_question(asked: dict[str, Any]) -> Question:
    """Reads the JSON of a question, in which null stands for what the editor does not know. Raises ValueError for
    anything else.

    {"values": {"mode": "manual", "cfg": 2, …},
     "group": 1, "files": {"unet_name": …}, "weight_dtype": "default",
     "samplers": [{"type": "KSampler", "cfg": 4.0, "picture": {"width": 1024, "height": 1024}}]}
    """
    question = Question.model_validate({name: value for name, value in asked.items() if value is not None})
    if question.mode not in (AUTO, MANUAL):
        raise ValueError("the mode is neither auto nor manual")
    return question


class Sampled(NamedTuple):
    """file: of the model. question: about its plan, which says what is sampled."""

    file: HostFile
    question: Question

    def latents(self, picture: Picture) -> list[int] | None:
        """Returns the shape of a picture's latents, (B, C, H, W) or (B, C, F, H, W). Returns None for other dims."""
        of = self.file.model.latent_format
        if of.latent_dimensions not in (2, 3):
            return None
        frames = [(picture.length - 1) // of.temporal_downscale_ratio + 1] if of.latent_dimensions == 3 else []
        sides = [size // of.spacial_downscale_ratio for size in (picture.height, picture.width)]
        return [picture.batch_size, of.latent_channels, *frames, *sides]

    @property
    def largest(self) -> Picture | None:
        """The largest picture that is sampled; None if unknown."""
        shapes = {picture: self.latents(picture) for picture in self.question.pictures}
        known = {picture: math.prod(shape) for picture, shape in shapes.items() if shape}
        return max(known, key=known.__getitem__, default=None)

    @property
    def largest_work(self) -> Work:
        """The work of a step, with guidance if that is possible, and with the cost of a row if it can be counted."""
        guided = self.question.may_guide
        picture, costs = self.largest, self.file.costs
        shape = self.latents(picture) if picture else None
        forward = costs.count_latents(shape) if shape else None
        parts = (1 + guided) * (picture.batch_size if picture else 1)
        return costs.recall(Work(parts, has_branches=guided, forward=forward, loops=self.question.loops))


def resolve_asked(plan: ParallelPlan, sampled: Sampled | None) -> ResolvedPlan:
    """Turns a person's plan into the plan that runs. sampled: None if the model is unknown. Raises PlanError."""
    plan.check_weights()
    return resolve_plan(plan, sampled.file.module, sampled.file.sizes) if sampled else fit_to_machine(plan)


def runs_on_all_ranks(plan: ParallelPlan, sampled: Sampled | None) -> bool:
    """Whether the model allows the plan, and this machine has its ranks."""
    try:
        return resolve_asked(plan, sampled).plan.world_size == plan.world_size
    except PlanError:
        return False
