"""Flux.2: dev, which takes the guidance scale as a condition, and klein."""

from __future__ import annotations

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
    flow_euler,
    register,
    text_of,
    wanted_guidance,
    weightless,
    width,
)
from .flux import flux_naming
from .references import reference_conditions

PATCH = 1
# Beside what Flux.1 has under the same names; ComfyUI's to diffusers'.
MODULES = {
    "time_in.in_layer": "time_guidance_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_guidance_embed.timestep_embedder.linear_2",
    "guidance_in.in_layer": "time_guidance_embed.guidance_embedder.linear_1",
    "guidance_in.out_layer": "time_guidance_embed.guidance_embedder.linear_2",
    "double_stream_modulation_img.lin": "double_stream_modulation_img.linear",
    "double_stream_modulation_txt.lin": "double_stream_modulation_txt.linear",
    "single_stream_modulation.lin": "single_stream_modulation.linear",
}


def build_flux2(model: ModelDescription) -> comfy.model_base.Flux2:
    channels = model.config["in_channels"]
    sizes = {"in_channels": channels, "out_channels": channels, "hidden_size": width(model.config)}
    made = comfy.supported_models.Flux2(weightless(image_model="flux2", **sizes)).get_model({})
    made.takes_guidance = model.config.get("guidance_embeds", True)
    return made


def flux2_conditions(
    model: comfy.model_base.Flux2, _latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """The text's embeddings, the guidance scale, and images. Raises Refused for another place of these than 10 apart
    on the axis of images."""
    text = text_of(context, "Flux.2", "its text encoder")
    extra.pop("y", None)  # pooled text, of which Flux.2 takes none
    guidance, references = extra.pop("guidance", None), extra.pop("ref_latents", [])
    method = extra.pop("ref_latents_method", "index")
    if references and method != "index":
        raise Refused(f"The parallel Flux.2 cannot honour the reference method {method!r}.", "Use index.")
    conditions = {"encoder_hidden_states": text}
    if model.takes_guidance:
        conditions["guidance"] = wanted_guidance(guidance, "Flux.2").to(text)
    return conditions | reference_conditions(references, (PATCH, PATCH))


def flux2_table(detected: Detected, _width: int) -> Table:
    own = {f"{theirs}.weight": f"{name}.weight" for name, theirs in MODULES.items()}
    return comfy.utils.flux_to_diffusers(detected) | own


register(
    HostFamily(
        "Flux2Transformer2DModel",
        build_flux2,
        flux2_conditions,
        lambda _: flow_euler(shift=3.0, use_dynamic_shifting=True),
        visible=lambda _config: {"patch_size": PATCH},
        table=flux2_table,
        naming=flux_naming,
    )
)
