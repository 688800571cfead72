"""Z-Image, base and Turbo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import comfy.utils
import torch

from ..model_files import ModelDescription
from .base import HostFamily, Tensors, flow_euler, register, text_of, weightless
from .lumina2 import lumina2_conditions


def build_zimage(model: ModelDescription) -> comfy.model_base.Lumina2:
    config = weightless(image_model="lumina2", dim=model.config["dim"], in_channels=model.config["in_channels"])
    return comfy.supported_models.ZImage(config).get_model({})


def zimage_conditions(
    model: comfy.model_base.Lumina2, latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """Qwen3's embeddings."""
    return lumina2_conditions(model, latents, text_of(context, "Z-Image", "its Qwen3 encoder"), extra)


def zimage_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in ("dim", "n_layers", "n_refiner_layers")}


register(
    HostFamily(
        "ZImageTransformer2DModel",
        build_zimage,
        zimage_conditions,
        lambda _: flow_euler(shift=3.0),
        table=lambda detected, _width: comfy.utils.z_image_to_diffusers(detected),
        naming=zimage_naming,
    )
)
