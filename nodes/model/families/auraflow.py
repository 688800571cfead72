"""AuraFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import comfy.utils
import torch

from ..model_files import ModelDescription
from .base import HostFamily, Tensors, flow_euler, register, text_of, weightless

PATCH = 2


def build_auraflow(model: ModelDescription) -> comfy.model_base.AuraFlow:
    config = weightless(cond_seq_dim=model.config["joint_attention_dim"])
    made: Any = comfy.supported_models.AuraFlow(config).get_model({})
    made.table_side = math.isqrt(model.config["pos_embed_max_size"])
    return made


def auraflow_conditions(
    model: Any, latents: torch.Tensor, context: torch.Tensor | None, _extra: dict[str, Any]
) -> Tensors:
    """T5's embeddings, and where ComfyUI cuts its positions from the table: in the middle, rounded otherwise than in
    diffusers."""
    text = text_of(context, "AuraFlow", "its T5 encoder")
    start = [(model.table_side - size // PATCH) // 2 for size in latents.shape[-2:]]
    return {"encoder_hidden_states": text, "position_start": torch.tensor([start]).expand(len(text), -1)}


def auraflow_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    double = config["num_mmdit_layers"]
    return {"n_double_layers": double, "n_layers": double + config["num_single_dit_layers"]}


register(
    HostFamily(
        "AuraFlowTransformer2DModel",
        build_auraflow,
        auraflow_conditions,
        lambda _: flow_euler(shift=1.73),
        linear_sigmas=False,
        table=lambda detected, _width: comfy.utils.auraflow_to_diffusers(detected),
        naming=auraflow_naming,
    )
)
