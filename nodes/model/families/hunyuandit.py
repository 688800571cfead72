"""HunyuanDiT 1.0 to 1.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import comfy.utils
import torch

from ...errors import Refused
from ..model_files import ModelDescription
from .base import (
    Detected,
    HostFamily,
    Table,
    Tensors,
    fused,
    register,
    text_of,
    weightless,
    whole,
    width,
)

ENCODERS = "its text encoders, BERT and mT5"
TOKENS = {"encoder_hidden_states": 77, "encoder_hidden_states_t5": 256}

MODULES = {
    "text_embedder.linear_1": "mlp_t5.0",
    "text_embedder.linear_2": "mlp_t5.2",
    "pos_embed.proj": "x_embedder.proj",
    "time_extra_emb.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "time_extra_emb.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "time_extra_emb.extra_embedder.linear_1": "extra_embedder.0",
    "time_extra_emb.extra_embedder.linear_2": "extra_embedder.2",
    "proj_out": "final_layer.linear",
    **{f"time_extra_emb.pooler.{name}_proj": f"pooler.{name}_proj" for name in "kqvc"},
}
PARAMETERS = {
    "text_embedding_padding": "text_embedding_padding",
    "time_extra_emb.pooler.positional_embedding": "pooler.positional_embedding",
    "time_extra_emb.style_embedder.weight": "style_embedder.weight",
}
BLOCK = {
    "norm1.norm": "norm1",
    "norm1.linear": "default_modulation.1",
    "norm2": "norm3",
    "norm3": "norm2",
    "attn2.to_q": "attn2.q_proj",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
    "skip_norm": "skip_norm",
    "skip_linear": "skip_linear",
    **{f"{attention}.norm_{name}": f"{attention}.{name}_norm" for attention in ("attn1", "attn2") for name in "qk"},
    **{f"{attention}.to_out.0": f"{attention}.out_proj" for attention in ("attn1", "attn2")},
}


def build_hunyuandit(model: ModelDescription) -> comfy.model_base.HunyuanDiT:
    """Up to 1.1 it takes the image's size as a condition; 1.2 has another noise schedule too."""
    is_sized = model.config.get("use_style_cond_and_image_meta_size", True)
    config_class = comfy.supported_models.HunyuanDiT1 if is_sized else comfy.supported_models.HunyuanDiT
    made = config_class(weightless(in_channels=model.config["in_channels"])).get_model({})
    made.is_sized = is_sized
    return made


def hunyuandit_conditions(
    model: comfy.model_base.HunyuanDiT, latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """BERT's and mT5's embeddings with their masks; up to 1.1 the image's size, and the only style that there is."""
    given = {"encoder_hidden_states": text_of(context, "HunyuanDiT", ENCODERS)}
    for name in ("text_embedding_mask", "encoder_hidden_states_t5", "text_embedding_mask_t5"):
        if name not in extra:
            raise Refused(
                "HunyuanDiT needs texts of two encoders.", f"Connect a CLIP Text Encode node with {ENCODERS}."
            )
        given[name] = extra.pop(name)
    for name, tokens in TOKENS.items():
        if given[name].shape[1] != tokens:
            raise Refused(
                "The parallel HunyuanDiT takes prompts of up to 77 tokens of BERT and 256 of mT5, and got one that "
                f"fills {given[name].shape[1]} in place of {tokens}.",
                "Shorten the prompt, or use the stock loader.",
            )
    size = extra.pop("image_meta_size", None)
    if model.is_sized:
        given |= {"image_meta_size": size, "style": torch.zeros(len(latents), dtype=torch.int64)}
    return given


def hunyuandit_schedule(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "_class_name": "DDPMScheduler",
        "beta_start": 0.00085,
        "beta_end": 0.03 if config.get("use_style_cond_and_image_meta_size", True) else 0.018,
        "beta_schedule": "scaled_linear",
        "clip_sample": False,
        "prediction_type": "v_prediction",
        "steps_offset": 1,
    }


def hunyuandit_table(detected: Detected, width: int) -> Table:
    final = "final_layer.adaLN_modulation.1"
    swapped = {
        f"norm_out.linear.{part}": (f"{final}.{part}", None, comfy.utils.swap_scale_shift)
        for part in ("weight", "bias")
    }
    table = {**whole(MODULES), **PARAMETERS, **swapped}
    for index in range(detected["depth"]):
        block = f"blocks.{index}."
        table |= whole({block + name: block + original for name, original in BLOCK.items()})
        table |= fused([f"{block}attn1.to_{name}" for name in "qkv"], f"{block}attn1.Wqkv", width)
        table |= fused([f"{block}attn2.to_{name}" for name in "kv"], f"{block}attn2.kv_proj", width)
    return table


def hunyuandit_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"depth": config["num_layers"], "hidden_size": width(config)}


register(
    HostFamily(
        "HunyuanDiT2DModel",
        build_hunyuandit,
        hunyuandit_conditions,
        hunyuandit_schedule,
        table=hunyuandit_table,
        naming=hunyuandit_naming,
    )
)
