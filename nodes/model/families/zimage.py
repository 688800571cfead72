"""Z-Image, base and Turbo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import comfy.utils
import torch

from ..model_files import ModelDescription
from .base import Detected, HostFamily, Layout, Shapes, Tensors, flow_euler, register, text_of, weightless
from .lumina2 import MOST_TEXT, lumina2_conditions


def build_zimage(model: ModelDescription) -> comfy.model_base.Lumina2:
    config = weightless(image_model="lumina2", dim=model.config["dim"], in_channels=model.config["in_channels"])
    return comfy.supported_models.ZImage(config).get_model({})


def zimage_conditions(
    model: comfy.model_base.Lumina2, latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """Qwen3's embeddings."""
    return lumina2_conditions(model, latents, text_of(context, "Z-Image", "its Qwen3 encoder"), extra)


def zimage_config(detected: Detected, shapes: Shapes) -> dict[str, Any]:
    refiners = {name.split(".")[1] for name in shapes if name.startswith("noise_refiner.")}
    return {
        "in_channels": detected["in_channels"],
        "dim": detected["dim"],
        "n_layers": detected["n_layers"],
        "n_refiner_layers": len(refiners),
        "n_heads": detected["n_heads"],
        "n_kv_heads": detected["n_kv_heads"],
        "cap_feat_dim": detected["cap_feat_dim"],
        "rope_theta": detected["rope_theta"],
        "axes_dims": detected["axes_dims"],
        "axes_lens": [MOST_TEXT, *detected["axes_lens"][1:]],
    }


def zimage_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in ("dim", "n_layers", "n_refiner_layers")}


def other_zimage(detected: Detected) -> str | None:
    if "siglip_feat_dim" in detected:
        return "a Z-Image-Omni"
    return None if detected.get("pad_tokens_multiple") else "a Z-Image without tokens to fill up with"


LAYOUT = Layout(
    "Z-Image",
    (comfy.supported_models.ZImage,),
    zimage_config,
    lambda detected, _width: comfy.utils.z_image_to_diffusers(detected),
    zimage_naming,
    other_zimage,
)
register(
    HostFamily(
        "ZImageTransformer2DModel", build_zimage, zimage_conditions, lambda _: flow_euler(shift=3.0), layout=LAYOUT
    )
)
