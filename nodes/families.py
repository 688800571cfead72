"""The host's side of each model family: the stock BaseModel around a transformer that runs elsewhere.

A family builds a weight-less BaseModel, so that latent format, sampling and conditioning are ComfyUI's own, and turns
what ComfyUI hands to the diffusion model into the engine's conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import comfy.conds
import comfy.latent_formats
import comfy.model_base
import comfy.supported_models
import comfy.supported_models_base
import torch

from ..parallel_backend.errors import ModelFileError
from .model_files import ModelFolder

Tensors = dict[str, torch.Tensor]


class ClassConditionalDiT(comfy.model_base.BaseModel):
    """DiT as ComfyUI sees it: conditioned on a one-hot class vector (B, 1, classes + 1), the last being no class."""

    classes: int
    id2label: dict[int, str]


class DiTConfig(comfy.supported_models_base.BASE):
    """ComfyUI's model config for a DiT, with the noise schedule of the model's own scheduler config."""

    unet_extra_config = {}

    def __init__(self, unet_config: dict, latent_format: type, sampling_settings: dict) -> None:
        self.latent_format = latent_format
        self.sampling_settings = sampling_settings
        super().__init__(unet_config)


@dataclass(frozen=True)
class HostFamily:
    """build: a diffusers folder to a BaseModel without diffusion_model.
    conditions: (model, context, the other arguments of the diffusion model) to the engine's conditions; takes out of
    the last what it uses.
    scheduler: the model's config to the diffusers scheduler config, for a folder that has none.
    linear_sigmas: whether the family's pipeline hands its flow-matching scheduler sigmas from 1 to 1 / steps.
    """

    build: Callable[[ModelFolder], comfy.model_base.BaseModel]
    conditions: Callable[[comfy.model_base.BaseModel, torch.Tensor | None, Tensors], Tensors]
    scheduler: Callable[[Mapping[str, Any]], dict[str, Any]]
    linear_sigmas: bool = True


def family_for(model_class: str) -> HostFamily:
    """The host's side of a diffusers class that has a spec. Raises KeyError for others."""
    return FAMILIES[model_class]


def weightless(**unet_config: object) -> dict[str, object]:
    return {**unet_config, "disable_unet_model_creation": True}


def build_dit(folder: ModelFolder) -> ClassConditionalDiT:
    latent_formats = {3: comfy.latent_formats.ChromaRadiance, 4: comfy.latent_formats.SD15}
    channels = folder.config["in_channels"]
    if channels not in latent_formats:
        raise ModelFileError(f"A DiT on {channels}-channel latents is unknown; known are pixels (3) and SD-VAE (4).")
    model_type, settings = noise_schedule(folder.scheduler)
    config = DiTConfig(weightless(in_channels=channels), latent_formats[channels], settings)
    model = ClassConditionalDiT(config, model_type=model_type)
    model.classes = folder.config["num_embeds_ada_norm"]
    model.id2label = {int(index): name for index, name in folder.pipeline.get("id2label", {}).items()}
    return model


def noise_schedule(scheduler: dict) -> tuple[comfy.model_base.ModelType, dict]:
    """ComfyUI's model type and sampling settings for a diffusers scheduler config.

    Without one, DiT's own: epsilon prediction, linear betas.
    """
    if "FlowMatch" in scheduler.get("_class_name", ""):
        return comfy.model_base.ModelType.FLOW, {"shift": scheduler.get("shift", 1.0)}
    model_types = {
        "epsilon": comfy.model_base.ModelType.EPS,
        "v_prediction": comfy.model_base.ModelType.V_PREDICTION,
    }
    beta_schedules = {"linear": "sqrt_linear", "scaled_linear": "linear"}  # the same two under ComfyUI's names
    prediction = scheduler.get("prediction_type", "epsilon")
    betas = scheduler.get("beta_schedule", "linear")
    if prediction not in model_types or betas not in beta_schedules:
        raise ModelFileError(
            f"The scheduler config asks for {prediction} prediction with {betas} betas; "
            f"supported are {', '.join(model_types)} with {', '.join(beta_schedules)}, and flow matching."
        )
    return model_types[prediction], {
        "beta_schedule": beta_schedules[betas],
        "linear_start": scheduler.get("beta_start", 0.0001),
        "linear_end": scheduler.get("beta_end", 0.02),
        "timesteps": scheduler.get("num_train_timesteps", 1000),
    }


def dit_conditions(model: ClassConditionalDiT, context: torch.Tensor | None, _extra: Tensors) -> Tensors:
    """One-hot vectors to class labels (B). All zeros, as ConditioningZeroOut makes, mean no class."""
    width = model.classes + 1
    if context is None or context.shape[1:] != (1, width):
        raise ValueError("This DiT draws classes, not text: connect a DiT Class Label node made with this model.")
    one_hot = context[:, 0].float()
    if not one_hot.isfinite().all():
        raise ValueError("The conditioning holds NaN or infinite values; the node that made it went wrong.")
    zeroed = (one_hot == 0).all(1)
    if not (zeroed | ((one_hot == 1).sum(1) == 1) & ((one_hot != 0).sum(1) == 1)).all():
        raise ValueError("DiT class labels can't be averaged or blended; use one DiT Class Label a conditioning.")
    return {"class_labels": one_hot.argmax(1).masked_fill(zeroed, model.classes)}


def build_pixart(folder: ModelFolder) -> comfy.model_base.PixArt:
    """Alpha and Sigma are one diffusers class; they differ in the VAE, hence in the latents' scale."""
    pipeline = folder.pipeline.get("_class_name", "")
    sized = folder.config.get("use_additional_conditions")
    is_alpha = "Alpha" in pipeline or (not pipeline and (sized if sized is not None else True))
    config_class = comfy.supported_models.PixArtAlpha if is_alpha else comfy.supported_models.PixArtSigma
    return config_class(weightless(in_channels=folder.config["in_channels"])).get_model({})


def pixart_conditions(_model: comfy.model_base.PixArt, context: torch.Tensor | None, extra: Tensors) -> Tensors:
    """T5 embeddings, and the size that ComfyUI's conditioning names."""
    if context is None:
        raise ValueError("PixArt needs a text conditioning: connect a CLIP Text Encode node with its T5 encoder.")
    return {
        "encoder_hidden_states": context,
        "resolution": extra.pop("c_size"),
        "aspect_ratio": extra.pop("c_ar"),
    }


def build_sd3(folder: ModelFolder) -> comfy.model_base.SD3:
    """SD3 and SD3.5, medium and large."""
    return comfy.supported_models.SD3(weightless(in_channels=folder.config["in_channels"])).get_model({})


def sd3_conditions(_model: comfy.model_base.SD3, context: torch.Tensor | None, extra: Tensors) -> Tensors:
    """CLIP and T5 embeddings, joined, and CLIP's pooled ones."""
    if context is None or "y" not in extra:
        raise ValueError("SD3 needs a text conditioning: connect a CLIP Text Encode node with its text encoders.")
    return {"encoder_hidden_states": context, "pooled_projections": extra.pop("y")}


def build_flux(folder: ModelFolder) -> comfy.model_base.Flux:
    """Flux.1 dev, which takes the guidance scale as a condition, or schnell."""
    channels = folder.config["in_channels"] // 4
    is_dev = folder.config["guidance_embeds"]
    config_class = comfy.supported_models.Flux if is_dev else comfy.supported_models.FluxSchnell
    model = config_class(weightless(in_channels=channels, out_channels=channels)).get_model({})
    model.takes_guidance = is_dev
    model.pooled_width = folder.config["pooled_projection_dim"]
    return model


def flux_conditions(model: comfy.model_base.Flux, context: torch.Tensor | None, extra: Tensors) -> Tensors:
    """T5 embeddings, CLIP's pooled ones (zeros where there are none, as in ComfyUI), and the guidance scale."""
    if context is None:
        raise ValueError("Flux needs a text conditioning: connect a CLIP Text Encode node with its text encoders.")
    pooled, guidance = extra.pop("y", None), extra.pop("guidance", None)
    if pooled is None:
        pooled = context.new_zeros(len(context), model.pooled_width)
    conditions = {"encoder_hidden_states": context, "pooled_projections": pooled[:, : model.pooled_width]}
    return {**conditions, "guidance": guidance.to(context)} if model.takes_guidance else conditions


def flow_euler(**shift: object) -> dict[str, object]:
    """The scheduler config of the flow-matching families."""
    return {"_class_name": "FlowMatchEulerDiscreteScheduler", **shift}


def flux_schedule(config: Mapping[str, Any]) -> dict[str, object]:
    """dev shifts its sigmas by the image's size, schnell does not."""
    return flow_euler(shift=3.0, use_dynamic_shifting=True) if config["guidance_embeds"] else flow_euler(shift=1.0)


FAMILIES = {
    "DiTTransformer2DModel": HostFamily(build_dit, dit_conditions, lambda _: {"_class_name": "DDIMScheduler"}),
    "PixArtTransformer2DModel": HostFamily(
        build_pixart, pixart_conditions, lambda _: {"_class_name": "DPMSolverMultistepScheduler"}
    ),
    "SD3Transformer2DModel": HostFamily(
        build_sd3, sd3_conditions, lambda _: flow_euler(shift=3.0), linear_sigmas=False
    ),
    "FluxTransformer2DModel": HostFamily(build_flux, flux_conditions, flux_schedule),
}
