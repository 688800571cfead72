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
from .base import Detected, HostFamily, Layout, Shapes, Tensors, flow_euler, register, weightless

SD3_NEEDS = {
    "out_channels": "a final layer",
    "adm_in_channels": "an embedder of pooled text",
    "context_embedder_config": "an embedder of text",
    "pos_embed_max_size": "a table of positions",
}


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


def sd3_config(detected: Detected, _shapes: Shapes) -> dict[str, Any]:
    """SD3 has as many blocks as heads, of 64."""
    text = detected["context_embedder_config"]["params"]
    return {
        "patch_size": detected["patch_size"],
        "in_channels": detected["in_channels"],
        "out_channels": detected["out_channels"],
        "num_layers": detected["depth"],
        "attention_head_dim": 64,
        "num_attention_heads": detected["depth"],
        "joint_attention_dim": text["in_features"],
        "caption_projection_dim": text["out_features"],
        "pooled_projection_dim": detected["adm_in_channels"],
        "pos_embed_max_size": detected["pos_embed_max_size"],
        "dual_attention_layers": sorted(detected["x_block_self_attn_layers"]),
        "qk_norm": "rms_norm" if "qk_norm" in detected else None,
    }


def sd3_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"depth": config["num_layers"]}


def other_sd3(detected: Detected) -> str | None:
    if "context_processor_layers" in detected:
        return "an SD3 with layers of its own for the text"
    absent = [part for key, part in SD3_NEEDS.items() if key not in detected]
    return f"an SD3 without {' and '.join(absent)}" if absent else None


LAYOUT = Layout(
    "SD3 and SD3.5",
    (comfy.supported_models.SD3,),
    sd3_config,
    lambda detected, _width: comfy.utils.mmdit_to_diffusers(detected),
    sd3_naming,
    other_sd3,
)
register(
    HostFamily(
        "SD3Transformer2DModel",
        build_sd3,
        sd3_conditions,
        lambda _: flow_euler(shift=3.0),
        linear_sigmas=False,
        layout=LAYOUT,
    )
)
