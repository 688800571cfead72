"""Tiny VAEs of diffusers' classes, with seeded random weights, and what is decoded and encoded with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import diffusers
import torch

from tests.support.cases.vaes.vae_cases import CASES, Case


@dataclass(frozen=True)
class DiffusersVae:
    """config: of the class. scale: how many pixels wide a latent pixel is. frames, shots: of latents and of videos;
    none of images. temb, num_frames: that `decode` takes."""

    model_class: str
    config: Mapping[str, Any]
    latent_channels: int
    scale: int
    rows: int = 6
    frames: int = 0
    shots: int = 0
    batch: int = 1
    channels: int = 3
    temb: float | None = None
    num_frames: int | None = None

    def build(self) -> Any:
        """The model with weights that keep values near 1; norms scale and shift, as trained ones do."""
        torch.manual_seed(0)
        model = getattr(diffusers, self.model_class)(**self.config)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                random = torch.randn(weight.shape, generator=generator)
                if weight.ndim < 2 or name.endswith("gamma"):
                    by_one = name.endswith("gamma") or ("norm" in name and name.endswith("weight"))
                    weight.copy_(by_one + 0.2 * random.clamp(-2, 2))
                else:
                    weight.copy_(random / weight[0].numel() ** 0.5)
        return model.eval().requires_grad_(False)

    def latents(self) -> torch.Tensor:
        return self.draw(1, self.latent_channels, self.frames, self.rows, 3)

    def pictures(self) -> torch.Tensor:
        """Pixels of -1 to 1."""
        drawn = self.draw(2, self.channels, self.shots, self.rows * self.scale, 3 * self.scale)
        return drawn.clamp(-2, 2) / 2

    def arguments(self) -> dict[str, Any]:
        """What `decode` takes beside the latents."""
        timestep = {} if self.temb is None else {"temb": torch.full((self.batch,), self.temb)}
        return timestep if self.num_frames is None else {"num_frames": self.num_frames}

    def draw(self, seed: int, channels: int, frames: int, *sides: int) -> torch.Tensor:
        shape = (self.batch, channels, *([frames] if frames else []), *sides)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


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
    "hunyuan-video": DiffusersVae(
        "AutoencoderKLHunyuanVideo",
        levels("HunyuanVideo{}Block3D", (8, 8, 16, 16), latent_channels=4),
        *(4, 8),
        frames=3,
        shots=9,
    ),
    "hunyuan-video, frames in parts": DiffusersVae(
        "AutoencoderKLHunyuanVideo",
        levels("HunyuanVideo{}Block3D", (8, 8, 16, 16), latent_channels=4),
        *(4, 8),
        frames=6,
        shots=21,
    ),
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
ON_DEVICES: Mapping[str, Case | DiffusersVae] = {
    **CASES,
    **{name: case for name, case in VAES.items() if name != "ltx, noisy"},
}
