"""PixArt-alpha and PixArt-Sigma."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import comfy.utils
import torch

from ..model_files import ModelDescription
from .base import Detected, HostFamily, Table, Tensors, register, text_of, weightless, width


def build_pixart(folder: ModelDescription) -> comfy.model_base.PixArt:
    """Alpha and Sigma are one diffusers class; they differ in the VAE, hence in the latents' scale."""
    pipeline = folder.pipeline.get("_class_name", "")
    sized = folder.config.get("use_additional_conditions")
    is_alpha = "Alpha" in pipeline or (not pipeline and (sized if sized is not None else True))
    config_class = comfy.supported_models.PixArtAlpha if is_alpha else comfy.supported_models.PixArtSigma
    return config_class(weightless(in_channels=folder.config["in_channels"])).get_model({})


def pixart_conditions(
    _model: Any, _latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """T5 embeddings, and the size that ComfyUI's conditioning names."""
    return {
        "encoder_hidden_states": text_of(context, "PixArt", "its T5 encoder"),
        "resolution": extra.pop("c_size"),
        "aspect_ratio": extra.pop("c_ar"),
    }


def pixart_table(detected: Detected, width: int) -> Table:
    return comfy.utils.pixart_to_diffusers({"depth": detected["depth"], "hidden_size": width})


def pixart_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"depth": config["num_layers"], "hidden_size": width(config)}


register(
    HostFamily(
        "PixArtTransformer2DModel",
        build_pixart,
        pixart_conditions,
        lambda _: {"_class_name": "DPMSolverMultistepScheduler"},
        table=pixart_table,
        naming=pixart_naming,
    )
)
