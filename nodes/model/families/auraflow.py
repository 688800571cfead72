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
from .base import Detected, HostFamily, Layout, Shapes, Tensors, flow_euler, register, text_of, weightless

HEAD_DIM = 256
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


def auraflow_config(detected: Detected, shapes: Shapes) -> dict[str, Any]:
    """Heads of 256, as ComfyUI takes for granted too. shapes: by diffusers' names."""
    width, patch = shapes["pos_embed.proj.weight"]
    return {
        "patch_size": PATCH,
        "in_channels": patch // PATCH**2,
        "out_channels": shapes["proj_out.weight"][0] // PATCH**2,
        "num_mmdit_layers": detected["n_double_layers"],
        "num_single_dit_layers": detected["n_layers"] - detected["n_double_layers"],
        "attention_head_dim": HEAD_DIM,
        "num_attention_heads": width // HEAD_DIM,
        "joint_attention_dim": detected["cond_seq_dim"],
        "caption_projection_dim": width,
        "pos_embed_max_size": detected["max_seq"],
    }


def auraflow_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    double = config["num_mmdit_layers"]
    return {"n_double_layers": double, "n_layers": double + config["num_single_dit_layers"]}


LAYOUT = Layout(
    "AuraFlow",
    (comfy.supported_models.AuraFlow,),
    auraflow_config,
    lambda detected, _width: comfy.utils.auraflow_to_diffusers(detected),
    auraflow_naming,
)
register(
    HostFamily(
        "AuraFlowTransformer2DModel",
        build_auraflow,
        auraflow_conditions,
        lambda _: flow_euler(shift=1.73),
        linear_sigmas=False,
        layout=LAYOUT,
    )
)
