"""Chroma: Flux.1 without pooled text, its modulation distilled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import comfy.utils
import torch

from ...errors import Refused
from ..model_files import ModelDescription
from .base import Detected, HostFamily, Table, Tensors, flow_euler, register, text_of, weightless
from .flux import flux_naming

APPROXIMATOR = "distilled_guidance_layer"


def build_chroma(model: ModelDescription) -> comfy.model_base.Chroma:
    """ComfyUI counts Chroma's channels with the patches of 2×2 in them."""
    channels = model.config["in_channels"]
    config = weightless(image_model="chroma", in_channels=channels, out_channels=channels)
    return comfy.supported_models.Chroma(config).get_model({})


def chroma_conditions(
    _model: comfy.model_base.Chroma, _latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """T5 embeddings, all tokens of which count. Raises Refused for a guidance scale, which diffusers takes for 0."""
    extra.pop("y", None)  # CLIP's, of which Chroma takes none
    if extra.pop("guidance", torch.zeros(1)).any():
        raise Refused("The parallel Chroma takes no guidance scale.", "Remove the Flux Guidance node, and use cfg.")
    return {"encoder_hidden_states": text_of(context, "Chroma", "its T5 encoder")}


def chroma_table(detected: Detected, _width: int) -> Table:
    """Flux.1's, and the approximator of the modulation."""
    table = comfy.utils.flux_to_diffusers(detected)
    for end in ("weight", "bias"):
        for name in ("in_proj", "out_proj"):
            table[f"{APPROXIMATOR}.{name}.{end}"] = f"{APPROXIMATOR}.{name}.{end}"
        for layer in range(detected["n_layers"]):
            for theirs, own in (("linear_1", "in_layer"), ("linear_2", "out_layer")):
                table[f"{APPROXIMATOR}.layers.{layer}.{theirs}.{end}"] = f"{APPROXIMATOR}.layers.{layer}.{own}.{end}"
    norms = (f"{APPROXIMATOR}.norms.{layer}.weight" for layer in range(detected["n_layers"]))
    return table | {name: name for name in norms}


def chroma_naming(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**flux_naming(config), "n_layers": config["approximator_layers"]}


register(
    HostFamily(
        "ChromaTransformer2DModel",
        build_chroma,
        chroma_conditions,
        lambda _: flow_euler(shift=3.0, use_dynamic_shifting=True),
        visible=lambda _config: {"patch_size": 2},
        table=chroma_table,
        naming=chroma_naming,
    )
)
