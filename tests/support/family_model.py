"""Models of diffusers' classes on a mesh, called as the pipelines of their families call them."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.groups.calls import Call, Part
from parallel_backend.groups.mesh import Mesh
from parallel_backend.parallel_model import map_tensors
from parallel_backend.sampling.denoiser import Watch, denoise
from parallel_backend.sampling.passes import Pass
from parallel_backend.sampling.stepper import Stepper
from parallel_backend.seams.forward import Forward
from parallel_backend.seams.pipeline.stages import StageExit
from parallel_backend.seams.pipeline.step_pipeline import count_picture_tokens
from parallel_backend.weights.loading import Check, ModelSource, go_on
from parallel_backend.weights.parking import Parking
from parallel_backend.weights.stores import Store
from tests.support.cases.families import FAMILIES, Family, Tensors
from tests.support.cases.pipefusion_cases import case_inputs, family_of, scheduler_of

FAMILY_OF = {family.model_class: family for family in reversed(FAMILIES.values())}  # the first of each class


class Caller:
    """A model whose calls go elsewhere."""

    def __init__(self, model: torch.nn.Module, call: Any) -> None:
        self.model, self.call = model, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class FamilyModel(DiffusersModel):
    """A parallel model that takes a family's latents, timesteps and conditions. Its family's `reference` calls it with
    this rank's rows, and makes a prediction of what it returns."""

    def __init__(self, model: Any, mesh: Mesh) -> None:
        self.family = FAMILY_OF[type(model).__name__]
        super().__init__(model, mesh)
        self.parking = Parking(model, mesh.device)

    @classmethod
    def load(cls, source: ModelSource, mesh: Mesh) -> Any:
        """This rank's part of the model, with its weights."""
        model = cls.build(source, mesh)
        model.bring((), None)
        return model

    def bring(self, places: Collection[int], store: Store | None, check: Check = go_on) -> None:
        super().bring(places, store, check)
        self.fetched.park_with(self.parking)

    def of(self, family: Family) -> FamilyModel:
        """Sets another family of the class."""
        self.family = family
        return self

    def __call__(
        self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors, steps: int = 1
    ) -> torch.Tensor | None:
        """The prediction for a batch on rank 0; None elsewhere."""
        call = Call((latents, timestep_B), dict(conditions))

        def run(part: Part, forward: Forward) -> torch.Tensor | None:
            return self.run_rows(*call, call.size, part.rows, forward)

        with torch.inference_mode(), self.mesh.timeline.step("forward"), self.compiling(steps):
            outputs, parts = self.run_parts([call], run, partial(count_picture_tokens, patch_size=self.patch_size))
            found: Any = self.collect(outputs, parts, [call])
            return found and found[0]

    def run(self, args: tuple, kwargs: dict[str, Any], forward: Forward) -> Any:
        is_cpu = self.mesh.device.type == "cpu"  # torch.compile traces no tensor methods within a mode

        def call(*args: Any, **kwargs: Any) -> Any:
            with nullcontext() if is_cpu else torch.device("cpu"):  # the default, in which models run
                output = super(FamilyModel, self).run(args, kwargs, forward)
            if output is None:
                raise StageExit
            return output

        latents, timestep_B, given = (
            self.cast(args[0]),
            args[1].to(self.mesh.device, non_blocking=True),
            self.cast(kwargs),
        )
        model: Any = Caller(self.model, call)
        # On a card, references make their own tensors there.
        with nullcontext() if is_cpu else self.mesh.device:
            try:
                return self.family.reference(model, latents, timestep_B, given)
            except StageExit:
                return None

    def cast(self, value: Any) -> Any:
        """The same on the device, and in the model's dtype."""
        return map_tensors(
            lambda each: each.to(self.mesh.device, self.dtype if each.is_floating_point() else None, non_blocking=True),
            value,
        )

    def patch_size(self, latents: torch.Tensor) -> tuple[int, ...]:
        return self.family.patch


class Denoiser:
    """Samples with a family's model, by the engine's loop."""

    def __init__(self, model: FamilyModel) -> None:
        self.model = model

    def sample(
        self,
        latents: torch.Tensor,
        scheduler: Any,
        conditions: Tensors,
        negative: Tensors | None = None,
        guidance: float = 1.0,
        *,
        watch: Watch | None = None,
    ) -> torch.Tensor | None:
        """scheduler: with its timesteps set, or a Stepper of one. It is not changed."""
        stepper = scheduler.copy() if isinstance(scheduler, Stepper) else Stepper(scheduler)
        passes, scale = passes_of(conditions, negative), self.model.family.timestep_scale
        passes = [each._replace(kwargs=self.model.cast(each.kwargs)) for each in passes]
        return denoise(self.model, latents, stepper, passes, guidance, timestep_scale=scale, watch=watch)


def sampled(
    model: FamilyModel, name: str, scheduler: str = "flow", short_negative: bool = False
) -> torch.Tensor | None:
    """A whole sampler call of `pipefusion_cases`. name: of a family."""
    latents, conditions, negative = case_inputs(name, short_negative)
    return Denoiser(model.of(family_of(name))).sample(latents, scheduler_of(scheduler), conditions, negative, 3.0)


def passes_of(conditions: Tensors, negative: Tensors | None) -> list[Pass]:
    """The forwards of a step: cond and uncond in one batch if their shapes allow it, else one after the other."""
    if negative is None:
        return [Pass((0,), conditions)]
    if any(value.shape != negative[name].shape for name, value in conditions.items()):
        return [Pass((0,), conditions), Pass((1,), negative)]
    return [Pass((0, 1), {name: torch.cat([value, negative[name]]) for name, value in conditions.items()})]
