"""Wan, and the models made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.support.cases.host.base import BATCH, TEXT, HostCase, always, rows, text, video, with_

WAN = {
    "model_type": "t2v", "patch_size": (1, 2, 2), "in_dim": 16, "dim": 48, "ffn_dim": 64, "freq_dim": 32,
    "text_dim": 24, "out_dim": 16, "num_heads": 4, "num_layers": 4, "text_len": 512,
}  # fmt: skip

VISION = 9  # tokens of CLIP; published models get 257
FACE = 64  # pixels of a face's side, for a `shorten_faces` encoder; published ones see 512
ANIMATE = WAN | {"model_type": "i2v", "in_dim": 36, "num_layers": 5}
ANIMATE_CLASS = "model_animate.AnimateWanModel"
DANCER_CLASS = "comfy.ldm.wan.model_wandancer.WanDancerModel"
SCAIL = WAN | {"model_type": "i2v", "in_dim": 20}
SCAIL_INPUTS = {
    "clip_fea": rows(VISION, 1280),
    "pose_latents": rows(20, 3, 10, 14),
    "reference_latent": rows(20, 1, 10, 14),
}
DANCER = WAN | {
    "model_type": "i2v", "in_dim": 36, "in_dim_ref_conv": 16, "audio_inject_layers": [0, 2], "music_dim": 48,
    "music_latent_dim": 48,
}  # fmt: skip


def shorten_faces(model):
    """Takes the blocks out of the encoder that halve a face from 512 pixels to 64."""
    del model.motion_encoder.enc.net_app.convs[5:8]


def narrow_sound(model):
    """Gives the model a projection of sound with 16 channels. Published models get 1280."""
    import comfy.ops

    model.audio_proj = type(model.audio_proj)(
        seq_len=8, blocks=5, channels=16, intermediate_dim=32, output_dim=1536, context_tokens=16, device="cpu",
        dtype=model.patch_embedding.weight.dtype, operations=comfy.ops.disable_weight_init,
    )  # fmt: skip


vision, pose = rows(VISION, 1280), rows(16, 3, 10, 14)  # what CLIP has seen; a pose's latents


def wan(
    config: Mapping[str, Any] = WAN,
    channels: int = 16,
    name: str = "model.WanModel",
    shorten: Callable[[Any], None] = lambda _model: None,
    **more: Callable[..., Any],
) -> HostCase:
    """channels: of the latents. more: beside the text."""
    return HostCase(f"comfy.ldm.wan.{name}", config, with_(video(channels), text(24, **more)), shorten=shorten)


CASES: dict[str, HostCase] = {
    "wan-t2v": wan(),
    "wan-i2v": wan(WAN | {"model_type": "i2v", "in_dim": 36}, 36, clip_fea=vision),
    "wan-timestep-by-frame": HostCase(
        "comfy.ldm.wan.model.WanModel",
        WAN,
        lambda random: (
            (random(BATCH, 16, 3, 10, 14), torch.tensor([[0.0, 700.0, 700.0]] * BATCH)),
            {"context": random(BATCH, TEXT, 24)},
        ),
    ),
    "wan-vace": wan(
        WAN | {"vace_layers": 2, "vace_in_dim": 96},
        name="model.VaceWanModel",
        vace_context=rows(2, 96, 3, 10, 14),
        vace_strength=always([1.0, 0.5]),
    ),
    "wan-bernini": wan(context_latents=lambda random: [random(BATCH, 16, 1, 6, 8), random(BATCH, 16, 2, 10, 14)]),
    "wan-phantom": wan(time_dim_concat=rows(16, 2, 10, 14)),
    "wan-fun-control": wan(WAN | {"in_dim": 52, "in_dim_ref_conv": 16}, 52, reference_latent=rows(16, 10, 14)),
    "wan-camera": wan(
        WAN | {"model_type": "camera", "in_dim": 32, "in_dim_control_adapter": 24},
        32,
        "model.CameraWanModel",
        clip_fea=vision,
        camera_conditions=rows(24, 3, 80, 112),
    ),
    "wan-s2v": wan(
        WAN | {"audio_dim": 8, "num_audio_token": 2, "cond_dim": 16, "audio_inject_layers": [0, 2], "dim": 64},
        name="model.WanModel_S2V",
        audio_embed=rows(25, 8, 12),
        reference_latent=rows(16, 1, 10, 14),
        reference_motion=rows(16, 3, 10, 14),
        control_video=rows(16, 3, 10, 14),
    ),
    "wan-humo": wan(
        name="model.HumoWanModel",
        shorten=narrow_sound,
        audio_embed=rows(3, 8, 5, 16),
        reference_latent=rows(16, 1, 10, 14),
    ),
    "wan-animate": wan(ANIMATE, 36, ANIMATE_CLASS, shorten_faces, clip_fea=vision, pose_latents=pose),
    "wan-animate-face": wan(
        ANIMATE,
        36,
        ANIMATE_CLASS,
        shorten_faces,
        clip_fea=vision,
        pose_latents=pose,
        face_pixel_values=rows(3, 1, FACE, FACE),
    ),
    "wan-scail": wan(SCAIL, 20, "model.SCAILWanModel", **SCAIL_INPUTS),
    "wan-scail2": wan(SCAIL, 20, "model.SCAIL2WanModel", **SCAIL_INPUTS),
    "wan-dancer": HostCase(
        DANCER_CLASS, DANCER, with_(video(36, 16, 12), text(24, clip_fea=vision, audio_embed=rows(20, 35)))
    ),
    "wan-dancer-global": HostCase(DANCER_CLASS, DANCER, with_(video(36), text(24, clip_fea=vision, fps=always(7.5)))),
    "wan-causal": wan(name="ar_model.CausalWanModel"),
}
