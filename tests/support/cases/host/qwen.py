"""Qwen-Image and Mage-Flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.support.cases.host.base import BATCH, HostCase, always, image, latents, text, text_mask, with_

QWEN = {
    "patch_size": 2, "in_channels": 64, "out_channels": 16, "num_layers": 3, "attention_head_dim": 16,
    "num_attention_heads": 4, "joint_attention_dim": 32, "pooled_projection_dim": 24, "axes_dims_rope": (4, 6, 6),
}  # fmt: skip
MAGE_FLOW = {
    "in_channels": 32, "out_channels": 32, "num_layers": 3, "attention_head_dim": 16, "num_attention_heads": 4,
    "joint_attention_dim": 24, "axes_dims_rope": (4, 6, 6),
}  # fmt: skip
ONE_FRAME = latents(16, 1, 14, 22)


def row(**more: Callable[[Callable[..., torch.Tensor]], Any]) -> HostCase:
    return HostCase("comfy.ldm.qwen_image.model.QwenImageTransformer2DModel", QWEN, with_(ONE_FRAME, text(32, **more)))


def references(random: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    return [random(BATCH, 16, 1, 10, 12), random(BATCH, 16, 1, 6, 8)]


CASES: dict[str, HostCase] = {
    "qwen-image": row(),
    "qwen-image-mask": row(attention_mask=text_mask),
    "qwen-image-edit": row(ref_latents=references),
    "qwen-image-edit-index-timestep-zero": row(
        ref_latents=references, ref_latents_method=always("index_timestep_zero")
    ),
    "qwen-image-controlnet": row(control=lambda random: {"input": [random(BATCH, 77, 64), random(BATCH, 77, 64)]}),
    "mage-flow": HostCase(
        "comfy.ldm.mage_flow.model.MageFlowTransformer2DModel",
        MAGE_FLOW,
        with_(image(32, 7, 11), text(24, attention_mask=text_mask)),
    ),
}
