"""CogVideoX 1.0 and 1.5, from text or from an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import torch

from ..model_files import ModelDescription
from .base import Detected, HostFamily, Table, Tensors, moved, register, text_of, weightless, whole

CHANNELS = 16
OFFSET = 2.0

MODULES = {
    "patch_embed.proj": "patch_embed.proj",
    "patch_embed.text_proj": "patch_embed.text_proj",
    **{f"{name}.linear_{n}": f"{name}_linear_{n}" for name in ("time_embedding", "ofs_embedding") for n in (1, 2)},
    **{name: name for name in ("norm_final", "norm_out.linear", "norm_out.norm", "proj_out")},
}
BLOCK = {
    **{name: name for name in ("norm1.linear", "norm1.norm", "norm2.linear", "norm2.norm")},
    **{f"attn1.to_{name}": name for name in "qkv"},
    "attn1.norm_q": "norm_q",
    "attn1.norm_k": "norm_k",
    "attn1.to_out.0": "attn_out",
    "ff.net.0.proj": "ff_proj",
    "ff.net.2": "ff_out",
}


def build_cogvideox(model: ModelDescription) -> comfy.model_base.CogVideoX:
    """The 2B has latents of another scale than the others; the channels beyond 16 are images."""
    config = model.config
    names = ("in_channels", "num_attention_heads", "patch_size_t")
    sees_images = config["in_channels"] > CHANNELS
    config_class = comfy.supported_models.CogVideoX_I2V if sees_images else comfy.supported_models.CogVideoX_T2V
    return config_class(weightless(**{name: config.get(name) for name in names})).get_model({})


def cogvideox_conditions(
    _model: comfy.model_base.CogVideoX, _latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """T5's embeddings, and the images beside the latents. The offset of 1.5 is the engine's to set."""
    if "ofs" in extra and (extra["ofs"] == OFFSET).all():
        del extra["ofs"]
    text = text_of(context, "CogVideoX", "its T5 encoder")
    return {"encoder_hidden_states": text, **moved(extra, image_latents="image_latents")}


def cogvideox_schedule(config: Mapping[str, Any]) -> dict[str, Any]:
    is_2b = config["num_attention_heads"] < 48
    return {
        "_class_name": "CogVideoXDDIMScheduler" if is_2b else "CogVideoXDPMScheduler",
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "clip_sample": False,
        "prediction_type": "v_prediction",
        "rescale_betas_zero_snr": True,
        "set_alpha_to_one": True,
        "snr_shift_scale": 3.0 if is_2b else 1.0,
        "timestep_spacing": "trailing",
    }


def cogvideox_table(detected: Detected, _width: int) -> Table:
    table = whole(MODULES)
    for index in range(detected["num_layers"]):
        table |= whole({f"transformer_blocks.{index}.{name}": f"blocks.{index}.{own}" for name, own in BLOCK.items()})
    return table


register(
    HostFamily(
        "CogVideoXTransformer3DModel",
        build_cogvideox,
        cogvideox_conditions,
        cogvideox_schedule,
        visible=lambda config: {"in_channels": config["in_channels"], "ofs_proj_dim": config.get("ofs_embed_dim")},
        table=cogvideox_table,
        naming=lambda config: {"num_layers": config["num_layers"]},
    )
)
