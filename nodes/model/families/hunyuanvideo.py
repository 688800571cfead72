"""HunyuanVideo 1.0, from text, or from an image beside the latents."""

from __future__ import annotations

from typing import Any

import comfy.model_base
import comfy.supported_models
import torch

from ...errors import Refused
from ..model_files import ModelDescription
from .base import (
    HostFamily,
    Tensors,
    flow_euler,
    moved,
    register,
    text_of,
    wanted_guidance,
    weightless,
)

# By the channels that the model sees: the latents', an image's and its mask's, an image's alone.
BY_CHANNELS = {
    16: comfy.supported_models.HunyuanVideo,
    33: comfy.supported_models.HunyuanVideoI2V,
    32: comfy.supported_models.HunyuanVideoSkyreelsI2V,
}


def build_hunyuanvideo(model: ModelDescription) -> comfy.model_base.HunyuanVideo:
    config = model.config
    config_class = BY_CHANNELS.get(config["in_channels"], comfy.supported_models.HunyuanVideo)
    made = config_class(weightless(in_channels=config["in_channels"])).get_model({})
    made.takes_guidance = config["guidance_embeds"]
    made.pooled_width = config["pooled_projection_dim"]
    return made


def hunyuanvideo_conditions(
    model: comfy.model_base.HunyuanVideo, _latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """LLaMA's embeddings, CLIP's pooled ones, the guidance scale, and the image.

    A mask of the text is refused unless it leaves out nothing, as ComfyUI's text encoders never do: where it does,
    ComfyUI takes the mean of the whole text, and diffusers that of what is left.
    """
    text, pooled = text_of(context, "HunyuanVideo", "its text encoders"), extra.pop("y", None)
    if pooled is None:
        raise Refused(
            "HunyuanVideo needs CLIP's pooled text.", "Connect a CLIP Text Encode node with both its encoders."
        )
    mask = extra.pop("attention_mask", None)
    if mask is not None and (mask.is_floating_point() or not mask.all()):
        raise Refused(
            "The parallel HunyuanVideo cannot honour an attention_mask that leaves out text tokens.",
            "Encode the prompt with CLIP Text Encode, which adds none, or use the stock loader.",
        )
    guidance = extra.pop("guidance", None)
    given = {"encoder_hidden_states": text, "pooled_projections": pooled[:, : model.pooled_width]}
    if model.takes_guidance:
        given["guidance"] = wanted_guidance(guidance, "HunyuanVideo")
    return given | moved(extra, image_latents="image_latents")


register(
    HostFamily(
        "HunyuanVideoTransformer3DModel",
        build_hunyuanvideo,
        hunyuanvideo_conditions,
        lambda _config: flow_euler(shift=7.0),
    )
)
