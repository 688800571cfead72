"""What a model has to sample, as far as the graph around a node shows."""

from __future__ import annotations

import math
from typing import NamedTuple

from ...parallel_backend.costs.forward import Work
from ...parallel_backend.errors import PlanError
from ...parallel_backend.plan import ParallelPlan
from ..costs.plans import ModelCosts
from ..model.host_file import HostFile
from ..parallel_plan import fit_to_machine, resolve_plan
from ..plan_words import ResolvedPlan
from .question import Picture, Question


class Sampled(NamedTuple):
    """file: of the model. question: about its plan, which says what is sampled."""

    file: HostFile
    question: Question

    @property
    def costs(self) -> ModelCosts:
        return self.file.costs()

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

    def work(self, guided: bool) -> Work:
        """Returns the work of a step, with the cost of a row if it can be counted."""
        picture, costs = self.largest, self.costs
        shape = self.latents(picture) if picture else None
        forward = costs.count_latents(shape) if shape else None
        parts = (1 + guided) * (picture.batch_size if picture else 1)
        return costs.recall(Work(parts, has_branches=guided, forward=forward, loops=self.question.loops))

    @property
    def largest_work(self) -> Work:
        """The work of a step, with guidance if that is possible."""
        return self.work(self.question.may_guide)


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
