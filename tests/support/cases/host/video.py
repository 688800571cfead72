"""HunyuanVideo and HunyuanImage."""

from __future__ import annotations

import torch

from tests.support.cases.host.base import BATCH, TEXT, HostCase, guidance, image, text, video, with_

HUNYUAN = {
    "image_model": "hunyuan_video", "in_channels": 16, "out_channels": 16, "vec_in_dim": 32, "context_in_dim": 24,
    "hidden_size": 64, "mlp_ratio": 4.0, "num_heads": 4, "depth": 2, "depth_single_blocks": 2, "axes_dim": [4, 6, 6],
    "theta": 256, "patch_size": [1, 2, 2], "qkv_bias": True, "guidance_embed": True, "byt5": False, "meanflow": False,
    "use_cond_type_embedding": False, "vision_in_dim": None, "meanflow_sum": False,
}  # fmt: skip
HUNYUAN_15 = HUNYUAN | {
    "vec_in_dim": None, "guidance_embed": False, "patch_size": [1, 1, 1], "byt5": True,
    "use_cond_type_embedding": True, "vision_in_dim": 20, "depth_single_blocks": 0,
}  # fmt: skip
HUNYUAN_IMAGE = HUNYUAN | {"vec_in_dim": None, "patch_size": [1, 1], "axes_dim": [8, 8], "byt5": True}
HUNYUAN_VIDEO = "comfy.ldm.hunyuan_video.model.HunyuanVideo"


def pooled(random):
    return random(BATCH, 32)


CASES: dict[str, HostCase] = {
    "hunyuanvideo": HostCase(
        HUNYUAN_VIDEO,
        HUNYUAN,
        with_(
            video(16),
            text(
                24,
                y=pooled,
                guidance=guidance,
                attention_mask=lambda _random: (torch.arange(TEXT)[None] < 9).long(),
            ),
        ),
    ),
    "hunyuanvideo-i2v": HostCase(
        HUNYUAN_VIDEO,
        HUNYUAN,
        with_(
            video(16),
            text(24, y=pooled, guidance=guidance, guiding_frame_index=lambda _random: torch.zeros(BATCH)),
        ),
    ),
    "hunyuanvideo-15": HostCase(
        HUNYUAN_VIDEO,
        HUNYUAN_15,
        with_(
            video(16, 5, 7),
            text(24, txt_byt5=lambda random: random(BATCH, 5, 1472), clip_fea=lambda random: random(BATCH, 9, 20)),
        ),
    ),
    "hunyuanimage-21": HostCase(
        HUNYUAN_VIDEO,
        HUNYUAN_IMAGE,
        with_(image(16, 7, 11), text(24, txt_byt5=lambda random: random(BATCH, 5, 1472), guidance=guidance)),
    ),
}
