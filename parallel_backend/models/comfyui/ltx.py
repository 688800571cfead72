"""LTX-Video, and LTX 2 with its audio."""

from typing import Any

import torch

from ..spec import BlockList, ByFrame, register_class, single_stream


def dense_mask(mask: Any, values: object) -> torch.Tensor:
    """Returns the full mask of guides. ComfyUI keeps one row of it for the noise, and one for each of the guides'
    tokens."""
    if isinstance(mask, torch.Tensor):
        return mask
    tokens = mask.noisy_mask.shape[-1]
    dense = mask.noisy_mask.expand(1, 1, tokens, tokens).clone()
    dense[:, :, mask.guide_start : mask.guide_start + mask.tracked_count] = mask.tracked_mask
    return dense


def by_frame(timestep: Any, values: object) -> torch.Tensor:
    """Returns the modulation, which ComfyUI keeps once per frame if it is the same for all of a frame's tokens."""
    return timestep if isinstance(timestep, torch.Tensor) else timestep.data


VIDEO = single_stream(
    "transformer_blocks",
    "x",
    "attn1",
    sides={"pe": (1, "x"), "timestep": (1, "x")},
    converters={"self_attention_mask": dense_mask},
    whole=("context", "attention_mask", "self_attention_mask", "prompt_timestep"),
)
register_class("comfy.ldm.lightricks.model.LTXVModel", VIDEO, image="x")

OF_VIDEO = ("v_timestep", "v_cross_scale_shift_timestep", "v_cross_gate_timestep")
OF_AUDIO = ("a_timestep", "a_cross_scale_shift_timestep", "a_cross_gate_timestep")
BOTH = BlockList(
    path="transformer_blocks",
    tokens={"x": ("v", "a")},
    returns=("v", "a"),
    attention={"attn1": "v", "audio_attn1": "a", "audio_to_video_attn": "v|a", "video_to_audio_attn": "a|v"},
    sides={
        **dict.fromkeys(("v_pe", "v_cross_pe"), (1, "v")),
        **dict.fromkeys(("a_pe", "a_cross_pe"), (1, "a")),
        **dict.fromkeys(OF_VIDEO, ByFrame(3, "v")),
        **dict.fromkeys(OF_AUDIO, ByFrame(3, "a")),
    },
    converters={"self_attention_mask": dense_mask, **dict.fromkeys(OF_VIDEO, by_frame)},
    whole=(
        "v_context", "a_context", "attention_mask", "self_attention_mask", "v_prompt_timestep", "a_prompt_timestep",
    ),
)  # fmt: skip
register_class("comfy.ldm.lightricks.av_model.LTXAVModel", BOTH)
