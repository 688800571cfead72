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
from .base import HostFamily, Tensors, flow_euler, moved, register, text_of, weightless

VAE_SCALES = (8, 32, 32)
FIRST_FRAME_ALONE = "LTXConditionPipeline"  # whose latents' first frame is one of the video's
REFUSED = {
    "keyframe_idxs": "guide frames, as LTXV Add Guide sets them",
    "guide_attention_entries": "guide frames, as LTXV Add Guide sets them",
    "denoise_mask": "a noise mask, as LTXV Img To Video sets it",
}


def build_ltx(model: ModelDescription) -> comfy.model_base.LTXV:
    """The pipeline's class says how the latents' frames lie in the video."""
    made: Any = comfy.supported_models.LTXV(weightless()).get_model({})
    made.first_frame_alone = model.pipeline.get("_class_name") == FIRST_FRAME_ALONE
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
        "video_coords": latent_to_pixel_coords(corners, VAE_SCALES, causal_fix=model.first_frame_alone),
        **moved(extra, encoder_attention_mask="attention_mask"),
    }


def ltx_schedule(_config: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {"base_image_seq_len": 1024, "max_image_seq_len": 4096, "base_shift": 0.95, "max_shift": 2.05}
    return flow_euler(shift=1.0, use_dynamic_shifting=True, shift_terminal=0.1, **sizes)


register(
    HostFamily(
        "LTXVideoTransformer3DModel",
        build_ltx,
        ltx_conditions,
        ltx_schedule,
    )
)
