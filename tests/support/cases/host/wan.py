"""Wan, and the models made of it."""

from __future__ import annotations

import torch

from tests.support.cases.host.base import BATCH, TEXT, HostCase, text, video, with_

WAN = {
    "model_type": "t2v", "patch_size": (1, 2, 2), "in_dim": 16, "dim": 48, "ffn_dim": 64, "freq_dim": 32,
    "text_dim": 24, "out_dim": 16, "num_heads": 4, "num_layers": 4, "text_len": 512,
}  # fmt: skip

VISION = 9  # tokens of CLIP; published models get 257
FACE = 64  # pixels of a face's side, for a `shorten_faces` encoder; published ones see 512
ANIMATE = WAN | {"model_type": "i2v", "in_dim": 36, "num_layers": 5}
ANIMATE_CLASS = "comfy.ldm.wan.model_animate.AnimateWanModel"
SCAIL = WAN | {"model_type": "i2v", "in_dim": 20}
SCAIL_INPUTS = {
    "clip_fea": lambda random: random(BATCH, VISION, 1280),
    "pose_latents": lambda random: random(BATCH, 20, 3, 10, 14),
    "reference_latent": lambda random: random(BATCH, 20, 1, 10, 14),
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


def vision(random):
    """What CLIP has seen."""
    return random(BATCH, VISION, 1280)


def pose(random):
    return random(BATCH, 16, 3, 10, 14)


CASES: dict[str, HostCase] = {
    "wan-t2v": HostCase("comfy.ldm.wan.model.WanModel", WAN, with_(video(16), text(24))),
    "wan-i2v": HostCase(
        "comfy.ldm.wan.model.WanModel",
        WAN | {"model_type": "i2v", "in_dim": 36},
        with_(video(36), text(24, clip_fea=vision)),
    ),
    "wan-timestep-by-frame": HostCase(
        "comfy.ldm.wan.model.WanModel",
        WAN,
        lambda random: (
            (random(BATCH, 16, 3, 10, 14), torch.tensor([[0.0, 700.0, 700.0]] * BATCH)),
            {"context": random(BATCH, TEXT, 24)},
        ),
    ),
    "wan-vace": HostCase(
        "comfy.ldm.wan.model.VaceWanModel",
        WAN | {"vace_layers": 2, "vace_in_dim": 96},
        with_(
            video(16),
            text(
                24,
                vace_context=lambda random: random(BATCH, 2, 96, 3, 10, 14),
                vace_strength=lambda _random: [1.0, 0.5],
            ),
        ),
    ),
    "wan-bernini": HostCase(
        "comfy.ldm.wan.model.WanModel",
        WAN,
        with_(
            video(16),
            text(24, context_latents=lambda random: [random(BATCH, 16, 1, 6, 8), random(BATCH, 16, 2, 10, 14)]),
        ),
    ),
    "wan-phantom": HostCase(
        "comfy.ldm.wan.model.WanModel",
        WAN,
        with_(video(16), text(24, time_dim_concat=lambda random: random(BATCH, 16, 2, 10, 14))),
    ),
    "wan-fun-control": HostCase(
        "comfy.ldm.wan.model.WanModel",
        WAN | {"in_dim": 52, "in_dim_ref_conv": 16},
        with_(video(52), text(24, reference_latent=lambda random: random(BATCH, 16, 10, 14))),
    ),
    "wan-camera": HostCase(
        "comfy.ldm.wan.model.CameraWanModel",
        WAN | {"model_type": "camera", "in_dim": 32, "in_dim_control_adapter": 24},
        with_(video(32), text(24, clip_fea=vision, camera_conditions=lambda random: random(BATCH, 24, 3, 80, 112))),
    ),
    "wan-s2v": HostCase(
        "comfy.ldm.wan.model.WanModel_S2V",
        WAN | {"audio_dim": 8, "num_audio_token": 2, "cond_dim": 16, "audio_inject_layers": [0, 2], "dim": 64},
        with_(
            video(16),
            text(
                24,
                audio_embed=lambda random: random(BATCH, 25, 8, 12),
                reference_latent=lambda random: random(BATCH, 16, 1, 10, 14),
                reference_motion=lambda random: random(BATCH, 16, 3, 10, 14),
                control_video=lambda random: random(BATCH, 16, 3, 10, 14),
            ),
        ),
    ),
    "wan-humo": HostCase(
        "comfy.ldm.wan.model.HumoWanModel",
        WAN,
        with_(
            video(16),
            text(
                24,
                audio_embed=lambda random: random(BATCH, 3, 8, 5, 16),
                reference_latent=lambda random: random(BATCH, 16, 1, 10, 14),
            ),
        ),
        shorten=narrow_sound,
    ),
    "wan-animate": HostCase(
        ANIMATE_CLASS, ANIMATE, with_(video(36), text(24, clip_fea=vision, pose_latents=pose)), shorten=shorten_faces
    ),
    "wan-animate-face": HostCase(
        ANIMATE_CLASS,
        ANIMATE,
        with_(
            video(36),
            text(
                24, clip_fea=vision, pose_latents=pose, face_pixel_values=lambda random: random(BATCH, 3, 1, FACE, FACE)
            ),
        ),
        shorten=shorten_faces,
    ),
    "wan-scail": HostCase("comfy.ldm.wan.model.SCAILWanModel", SCAIL, with_(video(20), text(24, **SCAIL_INPUTS))),
    "wan-scail2": HostCase("comfy.ldm.wan.model.SCAIL2WanModel", SCAIL, with_(video(20), text(24, **SCAIL_INPUTS))),
    "wan-dancer": HostCase(
        "comfy.ldm.wan.model_wandancer.WanDancerModel",
        DANCER,
        with_(video(36, 16, 12), text(24, clip_fea=vision, audio_embed=lambda random: random(BATCH, 20, 35))),
    ),
    "wan-dancer-global": HostCase(
        "comfy.ldm.wan.model_wandancer.WanDancerModel",
        DANCER,
        with_(video(36), text(24, clip_fea=vision, fps=lambda _random: 7.5)),
    ),
    "wan-causal": HostCase("comfy.ldm.wan.ar_model.CausalWanModel", WAN, with_(video(16), text(24))),
}
