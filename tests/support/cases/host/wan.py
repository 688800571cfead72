"""Wan."""

from __future__ import annotations

import torch

from tests.support.cases.host.base import BATCH, TEXT, HostCase, text, video, with_

WAN = {
    "model_type": "t2v", "patch_size": (1, 2, 2), "in_dim": 16, "dim": 48, "ffn_dim": 64, "freq_dim": 32,
    "text_dim": 24, "out_dim": 16, "num_heads": 4, "num_layers": 4, "text_len": 512,
}  # fmt: skip

CASES: dict[str, HostCase] = {
    "wan-t2v": HostCase("comfy.ldm.wan.model.WanModel", WAN, with_(video(16), text(24))),
    "wan-i2v": HostCase(
        "comfy.ldm.wan.model.WanModel",
        WAN | {"model_type": "i2v", "in_dim": 36},
        with_(video(36), text(24, clip_fea=lambda random: random(BATCH, 257, 1280))),
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
}
