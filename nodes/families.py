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
import torch.nn.functional as F
from comfy.ldm.common_dit import pad_to_patch_size

from ..parallel_backend.errors import ModelFileError
from .model_files import ModelDescription
from .remote_model import Shape
from .single_file_layouts import width

Tensors = dict[str, torch.Tensor]

REFERENCE_METHODS = ("offset", "index", "uxo")


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
    conditions: (model, latents, context, the other arguments of the diffusion model) to the engine's conditions; takes
    out of the last what it uses.
    scheduler: the model's config to the diffusers scheduler config, for a folder that has none.
    linear_sigmas: whether the family's pipeline hands its flow-matching scheduler sigmas from 1 to 1 / steps.
    visible: the model's config to what ComfyUI's BaseModel reads of its diffusion model, by attribute.
    """

    build: Callable[[ModelDescription], comfy.model_base.BaseModel]
    conditions: Callable[[Any, torch.Tensor, torch.Tensor | None, dict[str, Any]], Tensors]
    scheduler: Callable[[Mapping[str, Any]], dict[str, Any]]
    linear_sigmas: bool = True
    visible: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _config: {}


def family_for(model_class: str) -> HostFamily:
    """The host's side of a diffusers class that has a spec. Raises KeyError for others."""
    return FAMILIES[model_class]


def weightless(**unet_config: object) -> dict[str, object]:
    return {**unet_config, "disable_unet_model_creation": True}


def build_dit(folder: ModelDescription) -> ClassConditionalDiT:
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


def dit_conditions(
    model: ClassConditionalDiT, _latents: torch.Tensor, context: torch.Tensor | None, _extra: dict[str, Any]
) -> Tensors:
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


def build_pixart(folder: ModelDescription) -> comfy.model_base.PixArt:
    """Alpha and Sigma are one diffusers class; they differ in the VAE, hence in the latents' scale."""
    pipeline = folder.pipeline.get("_class_name", "")
    sized = folder.config.get("use_additional_conditions")
    is_alpha = "Alpha" in pipeline or (not pipeline and (sized if sized is not None else True))
    config_class = comfy.supported_models.PixArtAlpha if is_alpha else comfy.supported_models.PixArtSigma
    return config_class(weightless(in_channels=folder.config["in_channels"])).get_model({})


def pixart_conditions(
    _model: comfy.model_base.PixArt, _latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """T5 embeddings, and the size that ComfyUI's conditioning names."""
    if context is None:
        raise ValueError("PixArt needs a text conditioning: connect a CLIP Text Encode node with its T5 encoder.")
    return {
        "encoder_hidden_states": context,
        "resolution": extra.pop("c_size"),
        "aspect_ratio": extra.pop("c_ar"),
    }


def build_sd3(folder: ModelDescription) -> comfy.model_base.SD3:
    """SD3 and SD3.5, medium and large."""
    return comfy.supported_models.SD3(weightless(in_channels=folder.config["in_channels"])).get_model({})


def sd3_conditions(
    _model: comfy.model_base.SD3, _latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """CLIP and T5 embeddings, joined, and CLIP's pooled ones."""
    if context is None or "y" not in extra:
        raise ValueError("SD3 needs a text conditioning: connect a CLIP Text Encode node with its text encoders.")
    return {"encoder_hidden_states": context, "pooled_projections": extra.pop("y")}


def build_flux(model: ModelDescription) -> comfy.model_base.Flux:
    """Flux.1 dev, which takes the guidance scale as a condition, as do those that see an image besides; or schnell."""
    config = model.config
    channels = (config.get("out_channels") or config["in_channels"]) // 4
    is_dev = config["guidance_embeds"]
    config_class = comfy.supported_models.Flux if is_dev else comfy.supported_models.FluxSchnell
    made = config_class(weightless(in_channels=config["in_channels"] // 4, out_channels=channels)).get_model({})
    made.takes_guidance = is_dev
    made.pooled_width = config["pooled_projection_dim"]
    return made


def flux_conditions(
    model: comfy.model_base.Flux, latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """T5 embeddings, CLIP's pooled ones (zeros where there are none, as in ComfyUI), the guidance scale, and images."""
    if context is None:
        raise ValueError("Flux needs a text conditioning: connect a CLIP Text Encode node with its text encoders.")
    pooled, guidance = extra.pop("y", None), extra.pop("guidance", None)
    if pooled is None:
        pooled = context.new_zeros(len(context), model.pooled_width)
    conditions = {"encoder_hidden_states": context, "pooled_projections": pooled[:, : model.pooled_width]}
    if model.takes_guidance:
        conditions["guidance"] = guidance.to(context)
    if "image_latents" in extra:
        conditions["image_latents"] = extra.pop("image_latents")
    if "ref_latents" in extra:
        method = extra.pop("ref_latents_method", "offset")
        tokens, ids = reference_tokens(latents, extra.pop("ref_latents"), method)
        conditions |= {"reference_tokens": tokens, "reference_ids": ids}
    return conditions


def reference_tokens(
    latents: torch.Tensor, references: list[torch.Tensor], method: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference images as tokens of 2×2 (B, tokens, 4C), and their places (B, tokens, 3): (index, row, column).

    method: the Edit Model Reference Method. Raises ValueError for one that changes the model's timesteps.
    """
    if method not in REFERENCE_METHODS:
        raise ValueError(
            f"The parallel model cannot honour the reference method {method!r}; use {' or '.join(REFERENCE_METHODS)}."
        )
    tokens, places, below, beside = [], [], 0, 0
    for number, reference in enumerate(references, 1):
        filled = pad_to_patch_size(reference, (2, 2))
        height, width = filled.shape[-2:]
        if method == "index":
            index, top, left = number, 0, 0
        elif method == "uxo":
            index, top, left = 0, latents.shape[-2] + below, latents.shape[-1] + beside
            below, beside = below + reference.shape[-2], beside + reference.shape[-1]
        else:
            taller = reference.shape[-2] + below > reference.shape[-1] + beside
            index, top, left = 1, 0 if taller else below, beside if taller else 0
            below, beside = max(below, reference.shape[-2] + top), max(beside, reference.shape[-1] + left)
        rows, columns = torch.arange(height // 2) + (top + 1) // 2, torch.arange(width // 2) + (left + 1) // 2
        tokens.append(F.unfold(filled, 2, stride=2).transpose(1, 2))
        places.append(torch.cartesian_prod(torch.tensor([index]), rows, columns))
    return torch.cat(tokens, 1), torch.cat(places).expand(len(latents), -1, -1)


def build_wan(model: ModelDescription) -> comfy.model_base.WAN21:
    """Wan 2.1 and the 14B of 2.2 have latents of 16 channels, the 5B of 2.2 has 48."""
    config = model.config
    kind = "i2v" if config["image_dim"] else "t2v"
    detected = weightless(image_model="wan2.1", model_type=kind, in_dim=config["in_channels"], dim=width(config))
    if config["out_channels"] == comfy.latent_formats.Wan22.latent_channels:
        config_class = comfy.supported_models.WAN22_T2V
    else:
        by_kind = {"i2v": comfy.supported_models.WAN21_I2V, "t2v": comfy.supported_models.WAN21_T2V}
        config_class = by_kind[kind]
    return config_class(detected).get_model({})


def wan_conditions(
    _model: comfy.model_base.WAN21, latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """UMT5's embeddings, CLIP's of the images, and what the model sees beside the latents."""
    if context is None:
        raise ValueError("Wan needs a text conditioning: connect a CLIP Text Encode node with its UMT5 encoder.")
    extra.pop("denoise_mask", None)  # in the timesteps already
    conditions = {"encoder_hidden_states": context}
    if "clip_fea" in extra:
        conditions["encoder_hidden_states_image"] = extra.pop("clip_fea")
    if "image_latents" in extra:
        conditions["image_latents"] = extra.pop("image_latents")
    return conditions


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
    "WanTransformer3DModel": HostFamily(
        build_wan,
        wan_conditions,
        lambda _: {
            "_class_name": "UniPCMultistepScheduler",
            "prediction_type": "flow_prediction",
            "use_flow_sigmas": True,
        },
        linear_sigmas=False,
        visible=lambda config: {"patch_embedding": Shape(width(config), config["in_channels"])},
    ),
}
