"""LTX-Video, and LTX 2 with its sound."""

from __future__ import annotations

import torch

from tests.support.cases.host.base import BATCH, SIGMA, HostCase, text, text_mask, video, with_

LTX = {
    "in_channels": 16, "cross_attention_dim": 64, "attention_head_dim": 16, "num_attention_heads": 4,
    "caption_channels": 24, "num_layers": 3,
}  # fmt: skip
LTX_2 = LTX | {
    "audio_in_channels": 128, "audio_cross_attention_dim": 32, "audio_attention_head_dim": 8,
    "audio_num_attention_heads": 4, "connector_attention_head_dim": 8, "connector_num_attention_heads": 3,
}  # fmt: skip
LTX_23 = LTX_2 | {"apply_gated_attention": True, "cross_attention_adaln": True}
LTX_VIDEO = "comfy.ldm.lightricks.model.LTXVModel"
LTX_AV = "comfy.ldm.lightricks.av_model.LTXAVModel"
FRAME = 35  # tokens


def nothing(_random):
    return None


def noise_by_token(*frames: float) -> torch.Tensor:
    """A timestep for each token, of frames that have these."""
    return torch.tensor(frames).repeat_interleave(FRAME).expand(BATCH, -1)


def keyframes(random):
    """A last frame that is a guide, half as strong as it might be."""
    return {
        "context": random(BATCH, 13, 24),
        "attention_mask": None,
        "keyframe_idxs": random(1, 3, FRAME, 2).abs().repeat(BATCH, 1, 1, 1),
        "denoise_mask": torch.cat([torch.ones(BATCH, 1, 3, 5, 7), torch.zeros(BATCH, 1, 1, 5, 7)], 2),
        "guide_attention_entries": [
            {"pre_filter_count": FRAME, "strength": 0.5, "pixel_mask": None, "latent_shape": (1, 5, 7)}
        ],
    }


def with_sound(timestep):
    """A call with latents of video and of sound."""
    return lambda random: (
        ([random(BATCH, 16, 3, 5, 7), random(BATCH, 8, 11, 16)], timestep),
        {"context": random(BATCH, 13, 48), "attention_mask": None},
    )


CASES: dict[str, HostCase] = {
    "ltxv": HostCase(LTX_VIDEO, LTX, with_(video(16, 5, 7, SIGMA), text(24, attention_mask=text_mask))),
    "ltxv-i2v": HostCase(
        LTX_VIDEO,
        LTX,
        with_(
            lambda random: ((random(BATCH, 16, 3, 5, 7), noise_by_token(0.0, SIGMA, SIGMA)), {}),
            text(24, attention_mask=nothing),
        ),
    ),
    "ltxv-guide": HostCase(
        LTX_VIDEO,
        LTX,
        with_(lambda random: ((random(BATCH, 16, 4, 5, 7), noise_by_token(SIGMA, SIGMA, SIGMA, 0.0)), {}), keyframes),
    ),
    "ltx2": HostCase(LTX_AV, LTX_2, with_sound(torch.full((BATCH,), SIGMA))),
    "ltx23-i2v": HostCase(
        LTX_AV, LTX_23, with_sound((noise_by_token(0.0, SIGMA, SIGMA), torch.full((BATCH, 11), SIGMA)))
    ),
}
