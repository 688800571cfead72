"""LTX-Video 0.9 to 0.9.8, from text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import torch
from comfy.ldm.lightricks.symmetric_patchifier import SymmetricPatchifier, latent_to_pixel_coords

from ...errors import Refused
from ..model_files import ModelDescription
from .base import Detected, HostFamily, Layout, Shapes, Tensors, flow_euler, moved, register, text_of, weightless

HEADS = 32
VAE_SCALES = (8, 32, 32)
FIRST_FRAME_ALONE = "LTXConditionPipeline"  # whose latents' first frame is one of the video's
# What ComfyUI reads of a file's metadata and the diffusers class has no choice of.
FIXED = {
    "positional_embedding_theta": 10000.0,
    "positional_embedding_max_pos": [20, 2048, 2048],
    "timestep_scale_multiplier": 1000,
    "use_middle_indices_grid": False,
    "caption_proj_before_connector": False,
    "cross_attention_adaln": False,
    "rope_type": "interleaved",
    "frequencies_precision": "float32",
}
REFUSED = {
    "keyframe_idxs": "guide frames, as LTXV Add Guide sets them",
    "guide_attention_entries": "guide frames, as LTXV Add Guide sets them",
    "denoise_mask": "a noise mask, as LTXV Img To Video sets it",
}


def build_ltx(model: ModelDescription) -> comfy.model_base.LTXV:
    """A file's metadata say how its latents' frames lie in the video; of a folder, its pipeline's class does."""
    made: Any = comfy.supported_models.LTXV(weightless()).get_model({})
    by_pipeline = model.pipeline.get("_class_name") == FIRST_FRAME_ALONE
    made.first_frame_alone = model.detected.get("causal_temporal_positioning", by_pipeline)
    made.vae_scales = tuple(model.detected.get("vae_scale_factors", VAE_SCALES))
    made.process_timestep = lambda timestep, **_conditions: timestep
    return made


def ltx_conditions(model: Any, latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]) -> Tensors:
    """T5's embeddings with their mask, frames a second, and where in the video each token begins."""
    if asked := dict.fromkeys(words for name, words in REFUSED.items() if extra.get(name) is not None):
        raise Refused(
            f"The parallel LTX-Video cannot honour {' or '.join(asked)}: all frames have one noise level here.",
            "Remove that node and start from an empty latent, or use the stock loader.",
        )
    _tokens, corners = SymmetricPatchifier(1).patchify(latents)
    return {
        "encoder_hidden_states": text_of(context, "LTX-Video", "its T5 encoder"),
        "frame_rate": torch.full((len(latents),), float(extra.pop("frame_rate"))),
        "video_coords": latent_to_pixel_coords(corners, model.vae_scales, causal_fix=model.first_frame_alone),
        **moved(extra, encoder_attention_mask="attention_mask"),
    }


def ltx_schedule(_config: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {"base_image_seq_len": 1024, "max_image_seq_len": 4096, "base_shift": 0.95, "max_shift": 2.05}
    return flow_euler(shift=1.0, use_dynamic_shifting=True, shift_terminal=0.1, **sizes)


def ltx_config(detected: Detected, shapes: Shapes) -> dict[str, Any]:
    """32 heads unless the metadata say otherwise."""
    channels = shapes["patchify_proj.weight"][1]
    return {
        "in_channels": channels,
        "out_channels": channels,
        "num_attention_heads": detected.get("num_attention_heads", HEADS),
        "attention_head_dim": detected["attention_head_dim"],
        "cross_attention_dim": detected["cross_attention_dim"],
        "num_layers": detected["num_layers"],
        "caption_channels": shapes["caption_projection.linear_1.weight"][1],
    }


def other_ltx(detected: Detected) -> str | None:
    changed = [name for name, value in FIXED.items() if detected.get(name, value) != value]
    return f"an LTX-Video with another {' and '.join(changed)}, as LTX-2 has" if changed else None


LAYOUT = Layout("LTX-Video", (comfy.supported_models.LTXV,), ltx_config, other=other_ltx)
register(HostFamily("LTXVideoTransformer3DModel", build_ltx, ltx_conditions, ltx_schedule, layout=LAYOUT))
