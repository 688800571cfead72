"""HunyuanVideo 1.0, from text, or from an image beside the latents."""

from __future__ import annotations

from typing import Any

import comfy.model_base
import comfy.supported_models
import torch

from ...errors import Refused
from ..model_files import ModelDescription
from .base import (
    Detected,
    HostFamily,
    Layout,
    Shapes,
    Tensors,
    flow_euler,
    moved,
    register,
    text_of,
    wanted_guidance,
    weightless,
)

HEAD_DIM = 128
# By the channels that the model sees: the latents', an image's and its mask's, an image's alone.
BY_CHANNELS = {
    16: comfy.supported_models.HunyuanVideo,
    33: comfy.supported_models.HunyuanVideoI2V,
    32: comfy.supported_models.HunyuanVideoSkyreelsI2V,
}
OTHERS = {
    "byt5": "a HunyuanVideo with a text encoder for glyphs",
    "meanflow": "a HunyuanVideo of the kind MeanFlow",
    "use_cond_type_embedding": "a HunyuanVideo 1.5",
    "vision_in_dim": "a HunyuanVideo 1.5",
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


def hunyuanvideo_config(detected: Detected, _shapes: Shapes) -> dict[str, Any]:
    """Heads of 128 and two refiner blocks, as ComfyUI takes for granted too."""
    frames, patch, _ = detected["patch_size"]
    sees_image = detected["in_channels"] != detected["out_channels"]
    return {
        "in_channels": detected["in_channels"],
        "out_channels": detected["out_channels"],
        "num_attention_heads": detected["num_heads"],
        "attention_head_dim": HEAD_DIM,
        "num_layers": detected["depth"],
        "num_single_layers": detected["depth_single_blocks"],
        "num_refiner_layers": 2,
        "patch_size": patch,
        "patch_size_t": frames,
        "guidance_embeds": detected["guidance_embed"],
        "text_embed_dim": detected["context_in_dim"],
        "pooled_projection_dim": detected["vec_in_dim"],
        "rope_theta": detected["theta"],
        "rope_axes_dim": detected["axes_dim"],
        "image_condition_type": "latent_concat" if sees_image else None,
    }


def other_hunyuanvideo(detected: Detected) -> str | None:
    found = [words for name, words in OTHERS.items() if detected.get(name)]
    if found:
        return found[0]
    if detected["vec_in_dim"] is None or len(detected["patch_size"]) != 3:
        return "a HunyuanVideo without an embedder of pooled text, or of images"
    return None


LAYOUT = Layout("HunyuanVideo", tuple(BY_CHANNELS.values()), hunyuanvideo_config, other=other_hunyuanvideo)
register(
    HostFamily(
        "HunyuanVideoTransformer3DModel",
        build_hunyuanvideo,
        hunyuanvideo_conditions,
        lambda _config: flow_euler(shift=7.0),
        layout=LAYOUT,
    )
)
