"""Tiny VAEs of diffusers' classes, with seeded random weights, and what is decoded and encoded with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tests.support.cases.vaes.vae_cases import CASES, DiffusersVae


def latents_of(encoded: Any) -> torch.Tensor:
    """What a pipeline makes of the result of `encode`: the mean and the spread, or the latents."""
    return encoded.latent if "latent" in encoded else encoded.latent_dist.parameters


def levels(kind: str, widths: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """The configuration of classes that name the blocks of their levels."""
    return {
        "block_out_channels": widths,
        "down_block_types": (kind.format("Down"),) * len(widths),
        "up_block_types": (kind.format("Up"),) * len(widths),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        **more,
    }


WAN = {"base_dim": 8, "z_dim": 4, "num_res_blocks": 1, "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
LTX = {
    "latent_channels": 16,
    "block_out_channels": (8, 16, 16, 16),
    "decoder_block_out_channels": (8, 16, 16, 16),
    "layers_per_block": (1, 1, 1, 1, 1),
    "decoder_layers_per_block": (1, 1, 1, 1, 1),
}
LTX_NOISY = {
    **LTX,
    "block_out_channels": (8, 8, 16, 16, 16),
    "down_block_types": ("LTXVideo095DownBlock3D",) * 4,
    "downsample_type": ("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
    "spatio_temporal_scaling": (True, True, True, True),
    "decoder_block_out_channels": (16, 32, 64),
    "decoder_layers_per_block": (1, 1, 1, 1),
    "decoder_spatio_temporal_scaling": (True, True, True),
    "decoder_inject_noise": (True, True, True, False),
    "upsample_residual": (True, True, True),
    "upsample_factor": (2, 2, 2),
    "timestep_conditioning": True,
    "encoder_causal": True,
    "decoder_causal": False,
    "spatial_compression_ratio": 32,
    "temporal_compression_ratio": 8,
}
LTX_2 = {
    "latent_channels": 16,
    "block_out_channels": (8, 16, 32, 64),
    "decoder_block_out_channels": (16, 32, 64),
    "layers_per_block": (1, 1, 1, 1, 1),
    "decoder_layers_per_block": (1, 1, 1, 1),
    "spatial_compression_ratio": 32,
    "temporal_compression_ratio": 8,
}
MOCHI = {
    "encoder_block_out_channels": (32, 32, 32, 32),
    "decoder_block_out_channels": (32, 32, 32, 32),
    "layers_per_block": (1, 1, 1, 1, 1),
}
DC = {
    "latent_channels": 8,
    "attention_head_dim": 8,
    "encoder_block_types": ("ResBlock", "ResBlock", "EfficientViTBlock"),
    "decoder_block_types": ("ResBlock", "ResBlock", "EfficientViTBlock"),
    "encoder_block_out_channels": (8, 16, 16),
    "decoder_block_out_channels": (8, 16, 16),
    "encoder_layers_per_block": (1, 1, 1),
    "decoder_layers_per_block": (1, 1, 1),
    "encoder_qkv_multiscales": ((), (), (5,)),
    "decoder_qkv_multiscales": ((), (), (5,)),
}

HUNYUAN = DiffusersVae(
    "AutoencoderKLHunyuanVideo",
    levels("HunyuanVideo{}Block3D", (8, 8, 16, 16), latent_channels=4),
    *(4, 8),
    frames=3,
    shots=9,
)

VAES: Mapping[str, DiffusersVae] = {
    "image": DiffusersVae(
        "AutoencoderKL", levels("{}EncoderBlock2D", (8, 16)) | {"up_block_types": ("UpDecoderBlock2D",) * 2}, 4, 2, 7
    ),
    "flux2": DiffusersVae(
        "AutoencoderKLFlux2",
        levels("{}EncoderBlock2D", (8, 16)) | {"up_block_types": ("UpDecoderBlock2D",) * 2, "latent_channels": 4},
        *(4, 2),
        batch=2,
    ),
    "dc": DiffusersVae("AutoencoderDC", DC, 8, 4, rows=7, batch=2),
    "dc, pixels by interpolation": DiffusersVae(
        "AutoencoderDC",
        {
            **DC,
            "upsample_block_type": "interpolate",
            "downsample_block_type": "conv",
            "decoder_norm_types": ("rms_norm", "batch_norm", "rms_norm"),
            "decoder_act_fns": ("silu", "relu", "silu"),
        },
        *(8, 4),
    ),
    "cogvideox": DiffusersVae(
        "AutoencoderKLCogVideoX",
        levels("CogVideoX{}Block3D", (8, 8, 16, 16), latent_channels=4),
        *(4, 8),
        frames=3,
        shots=9,
    ),
    "wan-2.1": DiffusersVae("AutoencoderKLWan", WAN, 4, 8, frames=3, shots=9),
    "wan-2.2": DiffusersVae(
        "AutoencoderKLWan",
        {
            **WAN,
            **{"is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2},
            "scale_factor_spatial": 16,
        },
        *(4, 16),
        frames=2,
        shots=5,
    ),
    "qwen-image": DiffusersVae("AutoencoderKLQwenImage", WAN, *(4, 8), frames=1, shots=1),
    "hunyuan-video": HUNYUAN,
    "hunyuan-video, frames in parts": replace(HUNYUAN, frames=6, shots=21),
    "ltx": DiffusersVae("AutoencoderKLLTXVideo", LTX, 16, 32, frames=2, shots=9),
    "ltx, noisy": DiffusersVae("AutoencoderKLLTXVideo", LTX_NOISY, *(16, 32), frames=2, shots=9, temb=0.05),
    "ltx-2": DiffusersVae("AutoencoderKLLTX2Video", LTX_2, 16, 32, frames=2, shots=9),
    "hunyuan-video-1.5": DiffusersVae(
        "AutoencoderKLHunyuanVideo15",
        {"latent_channels": 8, "block_out_channels": (16, 16, 16, 16, 16), "layers_per_block": 1},
        *(8, 16),
        rows=4,
        frames=2,
        shots=5,
    ),
    "easyanimate": DiffusersVae(
        "AutoencoderKLMagvit",
        {"latent_channels": 4, "block_out_channels": (8, 8, 16, 16), "layers_per_block": 1, "norm_num_groups": 4},
        *(4, 8),
        frames=3,
        shots=9,
    ),
    "svd": DiffusersVae(
        "AutoencoderKLTemporalDecoder",
        {"down_block_types": ("DownEncoderBlock2D",) * 2, "block_out_channels": (32, 32)},
        *(4, 2),
        batch=3,
        num_frames=3,
    ),
    "mochi": DiffusersVae("AutoencoderKLMochi", MOCHI, 12, 8, frames=2, shots=7),
}
# Those of which two devices decode the same.
ON_DEVICES: Mapping[str, DiffusersVae] = {
    **CASES,
    **{name: case for name, case in VAES.items() if name != "ltx, noisy"},
}
