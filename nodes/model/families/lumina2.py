"""Lumina Image 2.0."""

from __future__ import annotations

from typing import Any

import comfy.model_base
import comfy.supported_models
import torch

from ..model_files import ModelDescription
from .base import Detected, HostFamily, Layout, Shapes, Tensors, flow_euler, register, text_of, weightless

# What ComfyUI's module takes, and has no use for in these models: all tokens of a text count.
UNUSED = ("num_tokens", "attention_mask", "clip_text_pooled")
MOST_TEXT = 4096  # positions of text; ComfyUI knows no bound, and diffusers makes a table of so many


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


def lumina2_config(detected: Detected, shapes: Shapes) -> dict[str, Any]:
    refiners = {name.split(".")[1] for name in shapes if name.startswith("noise_refiner.")}
    return {
        "patch_size": detected["patch_size"],
        "in_channels": detected["in_channels"],
        "hidden_size": detected["dim"],
        "num_layers": detected["n_layers"],
        "num_refiner_layers": len(refiners),
        "num_attention_heads": detected["n_heads"],
        "num_kv_heads": detected["n_kv_heads"],
        "axes_dim_rope": detected["axes_dims"],
        "axes_lens": [MOST_TEXT, *detected["axes_lens"][1:]],
        "cap_feat_dim": detected["cap_feat_dim"],
    }


def other_lumina2(detected: Detected) -> str | None:
    if "clip_text_dim" in detected:
        return "a NewBie"
    return None if "n_kv_heads" in detected else f"a Lumina of the width {detected['dim']}"


LAYOUT = Layout("Lumina Image 2.0", (comfy.supported_models.Lumina2,), lumina2_config, other=other_lumina2)
register(
    HostFamily(
        "Lumina2Transformer2DModel", build_lumina2, lumina2_conditions, lambda _: flow_euler(shift=6.0), layout=LAYOUT
    )
)
