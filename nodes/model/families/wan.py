"""Wan 2.1 and 2.2, from text, from an image, or between two; the two experts of 2.2 14B are two models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.latent_formats
import comfy.model_base
import comfy.supported_models
import torch

from ..model_files import ModelDescription
from .base import Detected, HostFamily, Layout, Shape, Shapes, Tensors, moved, register, text_of, weightless, width


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


def wan_config(detected: Detected, shapes: Shapes) -> dict[str, Any]:
    """Heads of 128, as ComfyUI takes for granted too."""
    image = shapes.get("img_emb.proj.0.bias")
    return {
        "patch_size": detected["patch_size"],
        "num_attention_heads": detected["num_heads"],
        "attention_head_dim": detected["dim"] // detected["num_heads"],
        "in_channels": detected["in_dim"],
        "out_channels": detected["out_dim"],
        "text_dim": shapes["text_embedding.0.weight"][1],
        "freq_dim": detected["freq_dim"],
        "ffn_dim": detected["ffn_dim"],
        "num_layers": detected["num_layers"],
        "image_dim": image and image[0],
        "added_kv_proj_dim": image and detected["dim"],
        "pos_embed_seq_len": detected.get("flf_pos_embed_token_number"),
    }


def other_wan(detected: Detected) -> str | None:
    return "a Wan with a layer for reference images" if "in_dim_ref_conv" in detected else None


def wan_schedule(_config: Mapping[str, Any]) -> dict[str, Any]:
    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    return {"_class_name": "UniPCMultistepScheduler", **flow}


LAYOUT = Layout(
    "Wan 2.1 and 2.2",
    (comfy.supported_models.WAN21_T2V, comfy.supported_models.WAN21_I2V, comfy.supported_models.WAN22_T2V),
    wan_config,
    other=other_wan,
)
register(
    HostFamily(
        "WanTransformer3DModel",
        build_wan,
        wan_conditions,
        wan_schedule,
        linear_sigmas=False,
        visible=lambda config: {"patch_embedding": Shape(width(config), config["in_channels"])},
        layout=LAYOUT,
    )
)
