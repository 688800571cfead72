"""A UNet of SDXL's proportions by ComfyUI's own class.

SDXL has 320 channels in its first level, and latents of 128 × 128 at 1024². Levels and depths are SDXL's here. Heads
are nearly as many: 8 and 16, for 10 and 20. Text and labels are narrower.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.support.cases.host.base import fill_weights, of_comfyui
from tests.support.cases.host.image import UNET_CLASS, UNET_XL_BASE

LATENT_CHANNELS, TEXT_TOKENS, TEXT_WIDTH, LABELS = 4, 77, 64, 64


def config(channels: int) -> dict[str, Any]:
    """What the class takes, for so many channels in the first level."""
    return UNET_XL_BASE | {
        "model_channels": channels, "num_head_channels": channels // 4, "transformer_depth": [0, 0, 2, 2, 10, 10],
        "transformer_depth_middle": 10, "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
        "context_dim": TEXT_WIDTH, "adm_in_channels": LABELS,
    }  # fmt: skip


def build(channels: int) -> torch.nn.Module:
    """The model. Only where ComfyUI can be imported."""
    return fill_weights(of_comfyui(UNET_CLASS, **config(channels)))


def conditions(batch: int) -> dict[str, Any]:
    """The arguments beside latents and timesteps."""
    text, labels = torch.randn(batch, TEXT_TOKENS, TEXT_WIDTH), torch.randn(batch, LABELS)
    return {"context": text, "y": labels, "transformer_options": {}}
