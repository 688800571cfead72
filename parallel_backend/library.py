"""Uses the engine in a plain script under torchrun.

It makes a diffusers pipeline parallel in place, and loads a transformer in parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .compat import MOVE, execution_device
from .device import generators, is_accelerator
from .diffusers_model import DiffusersModel
from .errors import GroupError, PlanError, RequestError
from .groups.mesh import build_mesh, in_order, picture_axis
from .groups.mesh_layout import stages_of
from .hooks import Hooks
from .models import known_spec
from .models.checks import check_module
from .pipelines.arguments import refuse_compiled
from .pipelines.components import ALL, IMAGES, PipelineComponents, encoders_of
from .pipelines.transformer import PipelineTransformer
from .plan import ParallelPlan
from .vae.pipeline import PipelineVAE, check_vae
from .weights.folder import transformer_source
from .weights.placement import AllRanks, place_model
from .weights.sizes import FETCHED

if TYPE_CHECKING:
    from diffusers import ModelMixin

ATTRIBUTE = "parallel_transformer"  # the attribute that marks a parallel model
HOOKS = "parallel_hooks"  # the attribute with the hooks on a pipeline's other models
LOADED = "loaded_transformer"  # marks a model of which `load_transformer` has read this rank's part
TRANSFORMERS = ("transformer", "transformer_2")  # Wan 2.2 has one for high noise and one for low noise
MODELS = (*TRANSFORMERS, "unet")  # in pipelines


def parallelize(pipeline: Any, plan: ParallelPlan, vae: bool = False, images: str = ALL) -> None:
    """Makes the pipeline run on all ranks by the plan, with its transformer or UNet. The pipeline is called as before.

    pipeline: a diffusers pipeline on this rank's device. Its transformers have whole weights, or are the `model` of
    what `load_transformer` returned for the same plan. Every rank calls the pipeline with the same arguments. Of
    several prompts or pictures, each rank encodes and decodes its own. Without a generator, all ranks draw the same
    numbers: this call copies rank 0's current random state to every rank.
    vae: the ranks share the rows of what the VAE decodes and encodes, too.
    images: which ranks return all images, in order: all, or the first. Other ranks then return those that they have
    decoded.
    Raises PlanError, UnknownModelError, or RequestError for a pipeline without either, on every rank alike.
    """
    models = transformers_of(pipeline)
    if not models:
        raise RequestError(
            f"{type(pipeline).__name__} has no transformer or UNet to make parallel.",
            "Use a pipeline whose denoiser is one of them.",
        )
    if any(ATTRIBUTE in vars(model) for model in models):
        raise RequestError(
            f"This {type(pipeline).__name__} is parallel already.",
            "Call unparallelize(pipeline) first for another plan.",
        )
    if images not in IMAGES:
        raise RequestError(f"There is no images={images!r}.", f"Use {' or '.join(IMAGES)}.")
    check_world(plan)
    for model in models:  # before any group exists
        known_spec(type(model).__name__)  # raises for an unknown class
        check_model(model, plan)
    if vae:
        check_vae(getattr(pipeline, "vae", None))
    loaded = next((transformer for model in models if (transformer := vars(model).get(LOADED))), None)
    mesh = loaded.mesh if loaded else build_mesh(plan, device_of(pipeline, models[0]))
    said, hooks = [], Hooks()
    for model in models:
        transformer: DiffusersModel | None = vars(model).get(LOADED)
        if transformer is None:
            transformer = DiffusersModel(model, mesh)
            if plan.weights in FETCHED:
                place_weights(transformer)
        calls = PipelineTransformer(transformer, pipeline)
        transformer.hooks.replace(model, ATTRIBUTE, transformer)
        forget_after(pipeline, calls, transformer)
        said.append(describe(transformer))
    if vae:
        pictures = picture_axis(plan, mesh.device)
        PipelineVAE(pipeline.vae, pictures, hooks)
        if pictures.group:
            hooks.callback(dist.destroy_process_group, pictures.group)
        said.append("ranks share the rows of the VAE's pictures")
    if encoders_of(pipeline) or getattr(pipeline, "vae", None):
        said.append(PipelineComponents(pipeline, mesh, vae, images, hooks).describe())
    hooks.replace(pipeline, HOOKS, hooks)
    share_random_state(mesh.device)
    logging.info("%s is parallel: %s", type(pipeline).__name__, "; ".join(said))


def device_of(pipeline: Any, model: ModelMixin) -> torch.device:
    """Returns where a pipeline's model computes. It may wait elsewhere, if the pipeline offloads its models."""
    device = model.device
    return device if is_accelerator(device) else execution_device(pipeline) or device


def check_model(model: ModelMixin, plan: ParallelPlan) -> None:
    """Raises PlanError or RequestError if a pipeline's transformer cannot run by the plan."""
    loaded: DiffusersModel | None = vars(model).get(LOADED)
    if loaded and loaded.mesh.plan != plan:
        raise RequestError(
            f"load_transformer has read this rank's part for the plan {loaded.mesh.plan}, and this one is {plan}.",
            "Give both the same plan.",
        )
    refuse_compiled(model, plan)
    if not loaded:
        check_module(plan, model)


def place_weights(transformer: DiffusersModel) -> None:
    """Moves a model's weights to where its plan keeps them. Pipelines and their offload hooks do not move weights that
    are fetched."""
    place_model(AllRanks(transformer.mesh.device), transformer)

    def stay(change: Callable[[torch.Tensor], torch.Tensor], _recurse: bool = True) -> ModelMixin:
        dtype = change(torch.empty(0, dtype=transformer.dtype)).dtype
        if dtype != transformer.dtype:
            raise RequestError(
                f"The weights are fetched as {transformer.dtype}, and cannot be cast to {dtype}.",
                "Load the pipeline in that dtype, and call parallelize then.",
            )
        return transformer.model

    if transformer.fetched.store:
        transformer.hooks.replace(transformer.model, MOVE, stay)


def forget_after(pipeline: Any, calls: PipelineTransformer, transformer: DiffusersModel) -> None:
    """Drops what is kept for a sampling when the pipeline's call ends. diffusers' pipelines free their models then."""
    free = getattr(pipeline, "maybe_free_model_hooks", None)
    if free is None:
        return

    def forget() -> None:
        calls.forget()
        free()

    transformer.hooks.replace(pipeline, "maybe_free_model_hooks", forget)


def describe(transformer: DiffusersModel) -> str:
    """Says in words how a model is parallel."""
    plan, blocks = transformer.mesh.plan, transformer.sizes.blocks
    parts = [f"{type(transformer.model).__name__} by {plan}"]
    if plan.pipefusion > 1:
        own = stages_of(plan, blocks)[transformer.mesh["pipefusion"].index]
        parts.append(f"this rank has blocks {own.start + 1} to {own.stop} of {len(blocks)}")
    if transformer.fetched.store:
        parts.append(f"{len(transformer.fetched.flat_blocks)} blocks are fetched ({transformer.fetched.store.kind})")
    return ", ".join(parts)


def unparallelize(pipeline: Any) -> None:
    """Undoes `parallelize`: every rank's pipeline computes alone again, with whole weights.

    Every rank calls it. Random states stay as they are. Raises RequestError for a pipeline that is not parallel, or of
    which this rank has read a stage alone.
    """
    models = [model for model in transformers_of(pipeline) if ATTRIBUTE in vars(model)]
    if not models:
        raise RequestError(
            f"This {type(pipeline).__name__} is not parallel.",
            "Call unparallelize with the pipeline that parallelize was called with.",
        )
    transformers: list[DiffusersModel] = [getattr(model, ATTRIBUTE) for model in models]
    stores = [store for transformer in transformers if (store := transformer.fetched.store)]
    groups = [store.axis.group for store in stores if store.axis]
    for transformer in transformers:
        transformer.remove()
    if hooks := vars(pipeline).get(HOOKS):
        hooks.close()
    for mesh in {id(transformer.mesh): transformer.mesh for transformer in transformers}.values():
        mesh.close()
    for group in in_order(groups):
        dist.destroy_process_group(group)


def transformers_of(pipeline: Any) -> list[ModelMixin]:
    return [model for name in MODELS if (model := getattr(pipeline, name, None)) is not None]


def load_transformer(
    folder: str | Path, plan: ParallelPlan, device: torch.device, dtype: str = "fp32", name: str = TRANSFORMERS[0]
) -> DiffusersModel:
    """Returns this rank's part of the transformer in a diffusers pipeline folder. Reads no other weights.

    device: the result of `start_distributed`. dtype: fp32, bf16 or fp16. name: of the transformer's own folder. A
    pipeline may get the `model` of the result as its transformer. Raises PlanError, UnknownModelError, ModelFileError.
    """
    check_world(plan)
    transformer = DiffusersModel.build(transformer_source(folder, dtype, name), build_mesh(plan, device))
    place_weights(transformer)
    transformer.hooks.replace(transformer.model, LOADED, transformer)
    return transformer


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
