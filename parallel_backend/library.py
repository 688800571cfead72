"""Uses the engine in a plain script under torchrun.

It makes a diffusers pipeline parallel in place, or loads a transformer in parts for the loop that PipeFusion needs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .axes import STAGE_AXES
from .device import generators
from .diffusers_model import DiffusersModel
from .errors import GroupError, PlanError, RequestError
from .groups.collectives import gather_numbers
from .groups.mesh import Axis, build_mesh, picture_axis, replica_axis
from .models import adapter_for
from .models.checks import check_module
from .plan import INT4, INT8, OFF, ON, ParallelPlan
from .seams.batch import BatchSplit
from .vae.pipeline import PipelineVAE, check_vae, parallel_vae_of
from .weights.folder import transformer_source
from .weights.placement import WeightPlacement
from .weights.sizes import FETCHED

if TYPE_CHECKING:
    from diffusers import ModelMixin

ATTRIBUTE = "parallel_transformer"  # the attribute that marks a parallel model
TRANSFORMERS = ("transformer", "transformer_2")  # Wan 2.2 has one for high noise and one for low noise


def parallelize(pipeline: Any, plan: ParallelPlan, vae: bool = False) -> None:
    """Makes the pipeline's transformer run on all ranks by the plan. The way to call the pipeline does not change.

    pipeline: a diffusers pipeline with whole weights, on this rank's device. Every rank calls it with the same
    arguments, runs text encoders and VAE itself, and returns the same images. Without a generator, all ranks draw the
    same numbers: this call copies rank 0's current random state to every rank.
    vae: the ranks share the rows of what the VAE decodes and encodes, too.
    Raises PlanError, UnknownModelError, or RequestError for a pipeline without a transformer, on every rank alike.
    """
    models = transformers_of(pipeline)
    if not models:
        raise RequestError(
            f"{type(pipeline).__name__} has no transformer to make parallel.",
            "Use a pipeline whose denoiser is a diffusion transformer.",
        )
    if any(ATTRIBUTE in vars(model) for model in models):
        raise RequestError(
            f"This {type(pipeline).__name__} is parallel already.",
            "Call unparallelize(pipeline) first for another plan.",
        )
    check_world(plan)
    check_own_loop(plan)
    for model in models:  # before any group exists
        adapter_for(type(model).__name__)  # raises for an unknown class
        check_module(plan, model)
    if vae:
        check_vae(getattr(pipeline, "vae", None))
    mesh = build_mesh(plan, models[0].device)
    for model in models:
        transformer = DiffusersModel(model, mesh, remembers=False)
        BatchSplit(model, transformer.adapter, mesh["batch"], transformer.slot, transformer.hooks)
        transformer.hooks.replace(model, ATTRIBUTE, transformer)
    if vae:
        PipelineVAE(pipeline.vae, picture_axis(plan, mesh.device))
    share_random_state(mesh.device)


def check_own_loop(plan: ParallelPlan) -> None:
    """Raises PlanError for a plan that the pipeline's own loop cannot run. It calls the transformer step by step, and
    its weights are loaded whole."""
    whole_loop = "load_transformer and Denoiser"
    if plan.patch_count > 1 or plan.ways(STAGE_AXES) > 1:
        raise PlanError(
            f"The plan {plan} has PipeFusion, which carries state from step to step, and the pipeline's own loop "
            "calls the transformer one step at a time.",
            f"Use {whole_loop}, or ulysses, ring, cfg or dp.",
        )
    for field, refused, reason, allowed in (
        (
            "weights",
            plan.weights in FETCHED,
            "fetches weights block by block",
            "auto",
        ),
        ("compile", plan.compile == ON, "compiles the blocks for a whole sampling", OFF),
        ("sparse", plan.sparse != OFF, "counts the steps of a sampling", OFF),
        ("exchange_dtype", plan.exchange_dtype == INT4, "sends differences to the step before", INT8),
    ):
        if refused:
            raise PlanError(
                f"{field}={getattr(plan, field)} {reason}. The pipeline has loaded its weights, and its own loop calls "
                "the transformer step by step.",
                f"Use {field}={allowed}, or {whole_loop}.",
                field,
            )


def unparallelize(pipeline: Any) -> None:
    """Undoes `parallelize`: every rank's pipeline computes alone again, with whole weights.

    Every rank calls it. Random states stay as they are. Raises RequestError for a pipeline that is not parallel.
    """
    models = [model for model in transformers_of(pipeline) if ATTRIBUTE in vars(model)]
    if not models:
        raise RequestError(
            f"This {type(pipeline).__name__} is not parallel.",
            "Call unparallelize with the pipeline that parallelize was called with.",
        )
    transformers: list[DiffusersModel] = [getattr(model, ATTRIBUTE) for model in models]
    for transformer in transformers:
        transformer.remove()
    transformers[0].mesh.close()  # all transformers share one mesh
    if vae := parallel_vae_of(pipeline):
        vae.remove()


def transformers_of(pipeline: Any) -> list[ModelMixin]:
    return [model for name in TRANSFORMERS if (model := getattr(pipeline, name, None)) is not None]


def load_transformer(
    folder: str | Path, plan: ParallelPlan, device: torch.device, dtype: str = "fp32"
) -> DiffusersModel:
    """Returns this rank's part of the transformer in a diffusers pipeline folder. Reads no other weights.

    device: the result of `start_distributed`. dtype: fp32, bf16 or fp16. Raises PlanError, UnknownModelError,
    ModelFileError.
    """
    check_world(plan)
    transformer = DiffusersModel.build(transformer_source(folder, dtype), build_mesh(plan, device))
    WeightPlacement().place(AllRanks(device), transformer, plan)
    return transformer


class AllRanks:
    """The ranks of the default group, in a script. A failure on one rank fails the script."""

    control_group = None

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.groups = self

    def replicas(self, plan: ParallelPlan) -> Axis:
        return replica_axis(plan, self.device)

    def together(self, action: Callable[[], Any]) -> Any:
        result = action()
        gather_numbers((0,), self.control_group)  # a barrier that needs no GPU
        return result

    def alone(self, action: Callable[[], Any]) -> Any:
        return action()

    def check(self) -> None:
        """Does nothing: a script's ranks have no agreement on failures."""


def check_world(plan: ParallelPlan) -> None:
    """Raises PlanError if the plan needs another number of ranks than torchrun started."""
    if not dist.is_initialized():
        raise GroupError("The ranks have no group yet.", "Call start_distributed() first.")
    world = dist.get_world_size()
    if plan.world_size != world:
        raise PlanError(
            f"The plan {plan} is for a world size of {plan.world_size}, and torchrun started {world}.",
            f"Start --nproc-per-node={plan.world_size}, or change the degrees until their product is {world}.",
        )


def share_random_state(device: torch.device) -> None:
    """Copies the state of rank 0's generators, for the CPU and the device, to every rank."""
    for generator in generators(device):
        state = generator.get_state().to(device)
        dist.broadcast(state, 0)
        generator.set_state(state.cpu())
