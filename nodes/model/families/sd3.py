"""Stable Diffusion 3 and 3.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import comfy.utils
import torch

from ...errors import Refused
from ..model_files import ModelDescription
from .base import HostFamily, Tensors, flow_euler, register, weightless


def build_sd3(folder: ModelDescription) -> comfy.model_base.SD3:
    """SD3 and SD3.5, medium and large."""
    return comfy.supported_models.SD3(weightless(in_channels=folder.config["in_channels"])).get_model({})


def sd3_conditions(
    _model: comfy.model_base.SD3, _latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """CLIP and T5 embeddings, joined, and CLIP's pooled ones."""
    if context is None or "y" not in extra:
        raise Refused("SD3 needs a text conditioning.", "Connect a CLIP Text Encode node with its text encoders.")
    return {"encoder_hidden_states": context, "pooled_projections": extra.pop("y")}


def sd3_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"depth": config["num_layers"]}


register(
    HostFamily(
        "SD3Transformer2DModel",
        build_sd3,
        sd3_conditions,
        lambda _: flow_euler(shift=3.0),
        linear_sigmas=False,
        table=lambda detected, _width: comfy.utils.mmdit_to_diffusers(detected),
        naming=sd3_naming,
    )
)
