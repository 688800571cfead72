"""Lumina Image 2.0."""

from __future__ import annotations

from typing import Any

import comfy.model_base
import comfy.supported_models
import torch

from ..model_files import ModelDescription
from .base import HostFamily, Tensors, flow_euler, register, text_of, weightless

# What ComfyUI's module takes, and has no use for in these models: all tokens of a text count.
UNUSED = ("num_tokens", "attention_mask", "clip_text_pooled")


def build_lumina2(model: ModelDescription) -> comfy.model_base.Lumina2:
    config = weightless(image_model="lumina2", in_channels=model.config["in_channels"])
    return comfy.supported_models.Lumina2(config).get_model({})


def lumina2_conditions(
    _model: comfy.model_base.Lumina2, _latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """Gemma's embeddings."""
    for name in UNUSED:
        extra.pop(name, None)
    return {"encoder_hidden_states": text_of(context, "Lumina Image", "its Gemma encoder")}


register(
    HostFamily(
        "Lumina2Transformer2DModel",
        build_lumina2,
        lumina2_conditions,
        lambda _: flow_euler(shift=6.0),
    )
)
