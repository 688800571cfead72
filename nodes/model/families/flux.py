"""Flux.1: dev and schnell, and dev's kin that see images: Fill, Canny, Depth, Kontext."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import comfy.utils
import torch

from ..model_files import ModelDescription
from .base import (
    HostFamily,
    Tensors,
    flow_euler,
    moved,
    register,
    text_of,
    wanted_guidance,
    weightless,
    width,
)
from .references import image_ids, reference_conditions


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


def flux_conditions(model: Any, latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]) -> Tensors:
    """T5 embeddings, CLIP's pooled ones (zeros where there are none, as in ComfyUI), the guidance scale, and images."""
    text = text_of(context, "Flux", "its text encoders")
    pooled, guidance = extra.pop("y", None), extra.pop("guidance", None)
    if pooled is None:
        pooled = text.new_zeros(len(text), model.pooled_width)
    conditions = {"encoder_hidden_states": text, "pooled_projections": pooled[:, : model.pooled_width]}
    if model.takes_guidance:
        conditions["guidance"] = wanted_guidance(guidance, "Flux").to(text)
    references = extra.pop("ref_latents", None)
    if references:
        method = extra.pop("ref_latents_method", "offset")
        conditions["image_ids"] = image_ids(latents, references, method)
        conditions |= reference_conditions(references)
    return conditions | moved(extra, image_latents="image_latents")


def flux_schedule(config: Mapping[str, Any]) -> dict[str, object]:
    """dev shifts its sigmas by the image's size, schnell does not."""
    return flow_euler(shift=3.0, use_dynamic_shifting=True) if config["guidance_embeds"] else flow_euler(shift=1.0)


def flux_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {"depth": config["num_layers"], "depth_single_blocks": config["num_single_layers"]}
    return {**sizes, "hidden_size": width(config)}


register(
    HostFamily(
        "FluxTransformer2DModel",
        build_flux,
        flux_conditions,
        flux_schedule,
        table=lambda detected, _width: comfy.utils.flux_to_diffusers(detected),
        naming=flux_naming,
    )
)
