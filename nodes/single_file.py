"""Describes a single-file PixArt checkpoint from its header: the original layout and diffusers' own."""

from __future__ import annotations

import math
from pathlib import Path

import comfy.model_detection
import comfy.supported_models
import comfy.utils
import torch

from ..parallel_backend.errors import ModelFileError
from ..parallel_backend.loading import TensorSlice
from .model_files import ModelFolder, main_dtype, read_header

HEAD_DIM = 72
PATCH = 2
DIFFUSERS_KEYS = {"adaln_single.emb.timestep_embedder.linear_1.bias", "caption_projection.linear_1.weight"}


def describe_file(path: Path) -> tuple[ModelFolder, dict[str, TensorSlice] | None]:
    """The model in a file as a diffusers folder would describe it, and where its parameters lie in the file.

    Raises ModelFileError for a file that is broken or holds another model.
    """
    header = read_header(path)
    prefix = comfy.model_detection.unet_prefix_from_state_dict(header)
    if not any(name.startswith(prefix) for name in header):
        prefix = ""
    weights = {name.removeprefix(prefix): tensor for name, tensor in header.items() if name.startswith(prefix)}
    if (
        "adaln_single.emb.timestep_embedder.linear_1.bias" in weights
        and "caption_projection.linear_1.weight" in weights
    ):
        places = {name: TensorSlice(prefix + name) for name in weights}
    else:
        config = comfy.model_detection.model_config_from_unet(dict(weights), "")
        if not isinstance(config, comfy.supported_models.PixArtAlpha):
            kind = type(config).__name__ if config else "of a kind that ComfyUI does not know"
            raise ModelFileError(
                f"{path.name} is {kind}; single files are supported for PixArt, other models as diffusers folders."
            )
        places = pixart_places(weights, config.unet_config["depth"], prefix)
    shapes = {name: header[place.name].shape for name, place in places.items() if place.name in header}
    folder = ModelFolder(
        model_class="PixArtTransformer2DModel",
        config=pixart_config(shapes, weights.get("pos_embed")),
        files=(str(path),),
        dtype=main_dtype(weights),
    )
    return folder, places


def pixart_places(weights: dict[str, torch.Tensor], depth: int, prefix: str) -> dict[str, TensorSlice]:
    """ComfyUI's own table from diffusers' names to the original ones, as slices."""
    hidden = weights["x_embedder.proj.weight"].shape[0]
    table = comfy.utils.pixart_to_diffusers({"depth": depth, "hidden_size": hidden}, output_prefix=prefix)
    places = {}
    for name, place in table.items():
        original, (_dim, start, length) = (place, (0, 0, None)) if isinstance(place, str) else place
        places[name] = TensorSlice(original, start, length)
    return places


def pixart_config(shapes: dict[str, torch.Size], pos_embed: torch.Tensor | None) -> dict[str, object]:
    """The diffusers config that these weights fit; the training size is 1024 unless the file holds its positions."""
    hidden, in_channels = shapes["pos_embed.proj.weight"][:2]
    sample_size = PATCH * math.isqrt(pos_embed.shape[1]) if pos_embed is not None else 128
    blocks = {name.split(".")[1] for name in shapes if name.startswith("transformer_blocks.")}
    return {
        "num_attention_heads": hidden // HEAD_DIM,
        "attention_head_dim": HEAD_DIM,
        "in_channels": in_channels,
        "out_channels": shapes["proj_out.weight"][0] // PATCH**2,
        "num_layers": len(blocks),
        "cross_attention_dim": hidden,
        "sample_size": sample_size,
        "patch_size": PATCH,
        "caption_channels": shapes["caption_projection.linear_1.weight"][1],
        "use_additional_conditions": "adaln_single.emb.resolution_embedder.linear_1.weight" in shapes,
    }
