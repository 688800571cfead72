"""PixArt-alpha and PixArt-Sigma."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import comfy.utils
import torch

from ..model_files import ModelDescription
from .base import Detected, HostFamily, Layout, Shapes, Table, Tensors, register, text_of, weightless, width

HEAD_DIM = 72
PATCH = 2
TRAINED_SIDE = 64  # of the latents, for which positions are not scaled


def build_pixart(folder: ModelDescription) -> comfy.model_base.PixArt:
    """Alpha and Sigma are one diffusers class; they differ in the VAE, hence in the latents' scale."""
    pipeline = folder.pipeline.get("_class_name", "")
    sized = folder.config.get("use_additional_conditions")
    is_alpha = "Alpha" in pipeline or (not pipeline and (sized if sized is not None else True))
    config_class = comfy.supported_models.PixArtAlpha if is_alpha else comfy.supported_models.PixArtSigma
    made: Any = config_class(weightless(in_channels=folder.config["in_channels"])).get_model({})
    made.is_file = folder.names is not None
    made.interpolation = folder.config.get("interpolation_scale")
    return made


def pixart_conditions(
    model: Any, latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """T5 embeddings, the size that ComfyUI's conditioning names, and for a file the positions that ComfyUI gives it."""
    conditions = {
        "encoder_hidden_states": text_of(context, "PixArt", "its T5 encoder"),
        "resolution": extra.pop("c_size"),
        "aspect_ratio": extra.pop("c_ar"),
    }
    side = sum(latents.shape[-2:]) // 2 / TRAINED_SIDE
    if model.is_file and round(side):
        scale = (round(side) * TRAINED_SIDE // PATCH, model.interpolation or round(side))
        conditions["position_scale"] = torch.tensor([scale], dtype=torch.float32).expand(len(latents), -1)
    return conditions


def pixart_table(detected: Detected, width: int) -> Table:
    return comfy.utils.pixart_to_diffusers({"depth": detected["depth"], "hidden_size": width})


def pixart_config(detected: Detected, shapes: Shapes) -> dict[str, Any]:
    """The training size is 1024 unless the file holds its positions."""
    hidden, in_channels = shapes["pos_embed.proj.weight"][:2]
    blocks = {name.split(".")[1] for name in shapes if name.startswith("transformer_blocks.")}
    return {
        "num_attention_heads": hidden // HEAD_DIM,
        "attention_head_dim": HEAD_DIM,
        "in_channels": in_channels,
        "out_channels": shapes["proj_out.weight"][0] // PATCH**2,
        "num_layers": len(blocks),
        "cross_attention_dim": hidden,
        "sample_size": detected.get("input_size", 128),
        "patch_size": PATCH,
        "caption_channels": shapes["caption_projection.linear_1.weight"][1],
        "interpolation_scale": detected.get("pe_interpolation"),
        "use_additional_conditions": "adaln_single.emb.resolution_embedder.linear_1.weight" in shapes,
    }


def pixart_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"depth": config["num_layers"], "hidden_size": width(config)}


LAYOUT = Layout(
    "PixArt",
    (comfy.supported_models.PixArtAlpha, comfy.supported_models.PixArtSigma),
    pixart_config,
    pixart_table,
    pixart_naming,
)
register(
    HostFamily(
        "PixArtTransformer2DModel",
        build_pixart,
        pixart_conditions,
        lambda _: {"_class_name": "DPMSolverMultistepScheduler"},
        layout=LAYOUT,
    )
)
