"""Wan 2.1 and 2.2, from text, from an image, or between two; the two experts of 2.2 14B are two models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.latent_formats
import comfy.model_base
import comfy.supported_models
import torch

from ..model_files import ModelDescription
from .base import HostFamily, Shape, Tensors, moved, register, text_of, weightless, width


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
    extra.pop("denoise_mask", None)  # in the timesteps already
    return {
        "encoder_hidden_states": text_of(context, "Wan", "its UMT5 encoder"),
        **moved(extra, encoder_hidden_states_image="clip_fea", image_latents="image_latents"),
    }


def wan_schedule(_config: Mapping[str, Any]) -> dict[str, Any]:
    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    return {"_class_name": "UniPCMultistepScheduler", **flow}


register(
    HostFamily(
        "WanTransformer3DModel",
        build_wan,
        wan_conditions,
        wan_schedule,
        linear_sigmas=False,
        visible=lambda config: {"patch_embedding": Shape(width(config), config["in_channels"])},
    )
)
