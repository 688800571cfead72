"""The families that come as single files: their diffusers config and names, from what ComfyUI detects in the header."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import comfy.supported_models
import comfy.utils
import torch

Detected = Mapping[str, Any]
Shapes = Mapping[str, torch.Size]
# A name in the file, alone or with (dim, start, length) of what to take of it, or with None and a change of it.
Table = dict[str, str | tuple]

PIXART_HEAD_DIM = 72
PIXART_PATCH = 2
SD3_NEEDS = {
    "out_channels": "a final layer",
    "adm_in_channels": "an embedder of pooled text",
    "context_embedder_config": "an embedder of text",
    "pos_embed_max_size": "a table of positions",
}


@dataclass(frozen=True)
class Layout:
    """How a family lies in a single file.

    title: what people call the models. model_class: diffusers'.
    config: what ComfyUI detected, and shapes, to the diffusers config. The shapes are the parameters' by diffusers'
    names, or without a table the tensors' by their names in the file.
    table: what ComfyUI detected, and the width, to diffusers' names in the original ones, where ComfyUI has such a
    table or nobody has; else diffusers' own converter is asked.
    naming: the diffusers config to that part of what ComfyUI detects which its tables of names ask for.
    other: what ComfyUI detected to the words for a variant that diffusers' class or our spec of it does not cover.
    """

    title: str
    model_class: str
    config: Callable[[Detected, Shapes], dict[str, Any]]
    table: Callable[[Detected, int], Table] | None = None
    naming: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _config: {}
    other: Callable[[Detected], str | None] = lambda _detected: None


def pixart_table(detected: Detected, width: int) -> Table:
    return comfy.utils.pixart_to_diffusers({"depth": detected["depth"], "hidden_size": width})


def pixart_config(detected: Detected, shapes: Shapes) -> dict[str, Any]:
    """The training size is 1024 unless the file holds its positions."""
    hidden, in_channels = shapes["pos_embed.proj.weight"][:2]
    blocks = {name.split(".")[1] for name in shapes if name.startswith("transformer_blocks.")}
    return {
        "num_attention_heads": hidden // PIXART_HEAD_DIM,
        "attention_head_dim": PIXART_HEAD_DIM,
        "in_channels": in_channels,
        "out_channels": shapes["proj_out.weight"][0] // PIXART_PATCH**2,
        "num_layers": len(blocks),
        "cross_attention_dim": hidden,
        "sample_size": detected.get("input_size", 128),
        "patch_size": PIXART_PATCH,
        "caption_channels": shapes["caption_projection.linear_1.weight"][1],
        "use_additional_conditions": "adaln_single.emb.resolution_embedder.linear_1.weight" in shapes,
    }


def pixart_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"depth": config["num_layers"], "hidden_size": width(config)}


def width(config: Mapping[str, Any]) -> int:
    return config["num_attention_heads"] * config["attention_head_dim"]


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


def flux_config(detected: Detected, _shapes: Shapes) -> dict[str, Any]:
    """Patches of 2×2 are part of the channels in diffusers."""
    return {
        "patch_size": 1,
        "in_channels": detected["in_channels"] * 4,
        "out_channels": detected["out_channels"] * 4,
        "num_layers": detected["depth"],
        "num_single_layers": detected["depth_single_blocks"],
        "attention_head_dim": sum(detected["axes_dim"]),
        "num_attention_heads": detected["num_heads"],
        "joint_attention_dim": detected["context_in_dim"],
        "pooled_projection_dim": detected["vec_in_dim"],
        "guidance_embeds": detected["guidance_embed"],
        "axes_dims_rope": detected["axes_dim"],
    }


def flux_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {"depth": config["num_layers"], "depth_single_blocks": config["num_single_layers"]}
    return {**sizes, "hidden_size": width(config)}


def other_flux(detected: Detected) -> str | None:
    if detected.get("yak_mlp") or detected.get("txt_norm"):
        return "a Flux.1 with other layers, as Ovis-Image is"
    return "a Flux.1 without an embedder of pooled text" if detected.get("vec_in_dim") is None else None


def wan_config(detected: Detected, shapes: Shapes) -> dict[str, Any]:
    """Heads of 128, as ComfyUI takes for granted too."""
    image = shapes.get("img_emb.proj.0.bias")
    return {
        "patch_size": detected["patch_size"],
        "num_attention_heads": detected["num_heads"],
        "attention_head_dim": detected["dim"] // detected["num_heads"],
        "in_channels": detected["in_dim"],
        "out_channels": detected["out_dim"],
        "text_dim": shapes["text_embedding.0.weight"][1],
        "freq_dim": detected["freq_dim"],
        "ffn_dim": detected["ffn_dim"],
        "num_layers": detected["num_layers"],
        "image_dim": image and image[0],
        "added_kv_proj_dim": image and detected["dim"],
        "pos_embed_seq_len": detected.get("flf_pos_embed_token_number"),
    }


def other_wan(detected: Detected) -> str | None:
    return "a Wan with a layer for reference images" if "in_dim_ref_conv" in detected else None


PIXART = Layout("PixArt", "PixArtTransformer2DModel", pixart_config, pixart_table, pixart_naming)
SD3 = Layout(
    "SD3 and SD3.5",
    "SD3Transformer2DModel",
    sd3_config,
    lambda detected, _width: comfy.utils.mmdit_to_diffusers(detected),
    sd3_naming,
    other_sd3,
)
FLUX = Layout(
    "Flux.1",
    "FluxTransformer2DModel",
    flux_config,
    lambda detected, _width: comfy.utils.flux_to_diffusers(detected),
    flux_naming,
    other_flux,
)
WAN = Layout("Wan 2.1 and 2.2", "WanTransformer3DModel", wan_config, other=other_wan)
# By ComfyUI's own class, and not by what derives from it: Flux.2 derives from Flux.
LAYOUTS = {
    comfy.supported_models.PixArtAlpha: PIXART,
    comfy.supported_models.PixArtSigma: PIXART,
    comfy.supported_models.SD3: SD3,
    comfy.supported_models.Flux: FLUX,
    comfy.supported_models.FluxInpaint: FLUX,
    comfy.supported_models.FluxSchnell: FLUX,
    comfy.supported_models.WAN21_T2V: WAN,
    comfy.supported_models.WAN21_I2V: WAN,
    comfy.supported_models.WAN22_T2V: WAN,
}
