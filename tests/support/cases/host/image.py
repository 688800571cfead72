"""Stable Diffusion's UNets, Stable Diffusion 3, AuraFlow, PixArt, Hunyuan-DiT, Krea 2, Hunyuan3D."""

from __future__ import annotations

import torch

from tests.support.cases.host.base import BATCH, HostCase, always, image, latents, rows, text, with_

SD3 = {
    "input_size": None, "patch_size": 2, "in_channels": 16, "depth": 4, "num_blocks": 3, "adm_in_channels": 32,
    "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": 64, "out_features": 256}},
    "num_patches": 400, "pos_embed_max_size": 20, "qk_norm": "rms", "out_channels": 16,
}  # fmt: skip
AURA = {
    "in_channels": 4, "out_channels": 4, "patch_size": 2, "dim": 64, "n_layers": 4, "n_double_layers": 2,
    "n_heads": 4, "global_conddim": 64, "cond_seq_dim": 32, "max_seq": 400,
}  # fmt: skip
DIT = {
    **{"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 3, "attention_bias": True},
    **{"in_channels": 4, "out_channels": 8, "patch_size": 2, "sample_size": 16, "norm_eps": 1e-5},
    "num_embeds_ada_norm": 10,
}
PIXART = {
    "patch_size": 2, "in_channels": 4, "hidden_size": 72, "depth": 3, "num_heads": 4, "caption_channels": 32,
    "micro_condition": False, "pe_interpolation": 1,
}  # fmt: skip
HUNYUAN = {
    "patch_size": 2, "in_channels": 4, "hidden_size": 64, "depth": 6, "num_heads": 4, "text_states_dim": 32,
    "text_states_dim_t5": 64, "size_cond": True, "use_style_cond": True,
}  # fmt: skip
KREA = {
    "features": 96, "tdim": 32, "txtdim": 32, "heads": 6, "kvheads": 3, "multiplier": 2, "layers": 3, "patch": 2,
    "channels": 16, "txtlayers": 3, "txtheads": 2, "txtkvheads": 2,
}  # fmt: skip
HUNYUAN_3D = {
    "in_channels": 16, "context_in_dim": 32, "hidden_size": 64, "num_heads": 4, "depth": 2, "depth_single_blocks": 2
}  # fmt: skip
HUNYUAN_3D_21 = {
    "in_channels": 16, "hidden_size": 64, "context_dim": 32, "depth": 5, "num_heads": 4, "num_moe_layers": 2,
    "num_experts": 4, "guidance_cond_proj_dim": None,
}  # fmt: skip
UNET = {
    "image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 32, "num_res_blocks": [1, 1],
    "channel_mult": [1, 2], "num_heads": 2, "transformer_depth": [1, 1], "transformer_depth_output": [1, 1, 1, 1],
    "transformer_depth_middle": 1, "use_spatial_transformer": True, "context_dim": 24, "dims": 2,
    "use_linear_in_transformer": False, "use_temporal_attention": False,
}  # fmt: skip
UNET_XL = UNET | {
    "num_classes": "sequential", "adm_in_channels": 32, "use_linear_in_transformer": True, "num_head_channels": 16,
    "num_heads": -1,
}  # fmt: skip
UNET_1 = UNET | {
    "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 2, 4, 4], "num_heads": 4,
    "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
}  # fmt: skip
UNET_XL_BASE = UNET_XL | {
    "num_res_blocks": [2, 2, 2], "channel_mult": [1, 2, 4], "transformer_depth": [0, 0, 2, 2, 3, 3],
    "transformer_depth_output": [0, 0, 0, 2, 2, 2, 3, 3, 3], "transformer_depth_middle": 3,
}  # fmt: skip
SVD = UNET_1 | {
    "in_channels": 8, "num_heads": -1, "num_head_channels": 16, "num_classes": "sequential", "adm_in_channels": 32,
    "use_linear_in_transformer": True, "use_temporal_resblock": True, "use_temporal_attention": True,
    "extra_ff_mix_layer": True, "use_spatial_context": True, "video_kernel_size": [3, 1, 1],
    "merge_strategy": "learned_with_images", "merge_factor": 0.4, "num_res_blocks": [1, 1, 1, 1],
    "transformer_depth": [1, 1, 1, 0], "transformer_depth_output": [1, 1, 1, 1, 1, 1, 0, 0],
}  # fmt: skip
UNET_UPSCALER = UNET_1 | {"in_channels": 9, "disable_self_attentions": [True, True, False, False]}
STAGE_C = {
    "c_cond": 32, "c_hidden": [64, 64], "nhead": [4, 4], "blocks": [[1, 2], [2, 1]], "c_clip_text": 24,
    "c_clip_text_pooled": 24, "c_clip_img": 20,
}  # fmt: skip
STAGE_B = {
    "c_cond": 32, "c_hidden": [16, 32, 64, 64], "nhead": [-1, -1, 4, 4], "blocks": [[1, 1, 2, 1], [1, 2, 1, 1]],
    "block_repeat": [[1, 1, 1, 1], [2, 2, 1, 1]], "c_clip": 24,
}  # fmt: skip
POOLED = rows(32)
UNET_CLASS = "comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel"
MMDIT = "comfy.ldm.modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper"


def hunyuan_text(random):
    return {
        "context": random(BATCH, 77, 32),
        "text_embedding_mask": torch.ones(BATCH, 77),
        "encoder_hidden_states_t5": random(BATCH, 256, 64),
        "text_embedding_mask_t5": torch.ones(BATCH, 256),
    }


def residuals(random):
    """Of a ControlNet, for what a UNet of four levels adds to its skips, and to its middle."""
    channels = (32, 64, 128, 128)
    sides = [(-(-37 // 2**level), -(-29 // 2**level)) for level in range(4)]  # which halve oddly, rounded up
    skips = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]  # levels
    wide = [channels[0], *(channels[level] for level in (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3))]
    output = [random(BATCH, width, *sides[level]) for level, width in zip(skips, wide, strict=True)]
    return {"output": output, "middle": [random(BATCH, channels[-1], *sides[-1])]}


def video_frames(videos: int, frames: int, height: int, width: int):
    """The frames of videos, one after the other, as rows of a batch."""
    rows = videos * frames
    return lambda random: (
        (random(rows, 8, height, width), torch.full((rows,), 3.0)),
        {"context": random(rows, 1, 24), "y": random(rows, 32), "num_video_frames": frames},
    )


def stage_c(height: int, width: int):
    def call(random):
        given = {"clip_text": random(BATCH, 13, 24), "clip_text_pooled": random(BATCH, 1, 24)}
        given |= {"clip_img": random(BATCH, 1, 20), "sca": torch.zeros(BATCH), "crp": torch.zeros(BATCH)}
        return (random(BATCH, 16, height, width), torch.full((BATCH,), 0.7)), given

    return call


def stage_b(height: int, width: int):
    return lambda random: (
        (random(BATCH, 4, height, width), torch.full((BATCH,), 0.7)),
        {"effnet": random(BATCH, 16, 7, 5), "clip": random(BATCH, 1, 24), "sca": torch.zeros(BATCH)},
    )


def one_picture(channels: int, height: int, width: int):
    """A batch of one."""
    return lambda random: (
        (random(1, channels, height, width), torch.full((1,), 500.0)),
        {"context": random(1, 77, 24), "y": random(1, 32)},
    )


CASES: dict[str, HostCase] = {
    "sd3": HostCase(MMDIT, SD3, with_(image(16), text(64, y=POOLED))),
    "sd35-medium": HostCase(MMDIT, SD3 | {"x_block_self_attn_layers": [0, 1]}, with_(image(16), text(64, y=POOLED))),
    "auraflow": HostCase("comfy.ldm.aura.mmdit.MMDiT", AURA, with_(image(4), text(32))),
    "pixart": HostCase("comfy.ldm.pixart.pixartms.PixArtMS", PIXART, with_(image(4, 60, 72), text(32))),
    "hunyuandit": HostCase(
        "comfy.ldm.hydit.models.HunYuanDiT",
        HUNYUAN,
        with_(image(4), lambda random: {**hunyuan_text(random), "image_meta_size": torch.full((BATCH, 6), 64.0)}),
    ),
    "dit": HostCase(
        "paralleldit.DiT",
        {"config": DIT},
        with_(image(4), lambda _random: {"class_labels": torch.tensor([3, 10])}),
        "worker.comfyui.dit.module",
    ),
    "krea2": HostCase("comfy.ldm.krea2.model.SingleStreamDiT", KREA, with_(image(16), text(96))),
    "krea2-reference": HostCase(
        "comfy.ldm.krea2.model.SingleStreamDiT",
        KREA,
        with_(
            image(16),
            text(
                96,
                ref_latents=lambda random: [random(BATCH, 16, 8, 6)],
                ref_latents_method=always("index_timestep_zero"),
            ),
        ),
    ),
    "hunyuan3d-2": HostCase("comfy.ldm.hunyuan3d.model.Hunyuan3Dv2", HUNYUAN_3D, with_(latents(16, 77), text(32))),
    "hunyuan3d-21": HostCase(
        "comfy.ldm.hunyuan3dv2_1.hunyuandit.HunYuanDiTPlain", HUNYUAN_3D_21, with_(latents(16, 77), text(32))
    ),
    "sd15": HostCase(UNET_CLASS, UNET, with_(image(4, 16, 16), text(24))),
    # Sides that halve oddly. Several text tokens, and rows of a batch at several timesteps.
    "sd15-controlnet-odd": HostCase(UNET_CLASS, UNET_1, with_(image(4, 37, 29), text(24, control=residuals))),
    "sdxl-odd": HostCase(UNET_CLASS, UNET_XL_BASE, one_picture(4, 25, 18)),
    # Fewer rows than ranks, as the deepest level has three of them; and a picture that is too narrow to be shared.
    "sdxl-low": HostCase(UNET_CLASS, UNET_XL_BASE, one_picture(4, 9, 30)),
    "sdxl-narrow": HostCase(UNET_CLASS, UNET_XL_BASE, one_picture(4, 33, 2)),
    "sd-upscaler": HostCase(UNET_CLASS, UNET_UPSCALER, with_(image(9, 40, 17), text(24))),
    # Two videos; and one of whose deepest level there are fewer rows than four ranks.
    "svd-odd": HostCase(UNET_CLASS, SVD, video_frames(2, 3, 37, 22)),
    "svd-low": HostCase(UNET_CLASS, SVD, video_frames(1, 2, 17, 30)),
    "cascade-c": HostCase("comfy.ldm.cascade.stage_c.StageC", STAGE_C, stage_c(11, 14)),
    "cascade-b": HostCase("comfy.ldm.cascade.stage_b.StageB", STAGE_B, stage_b(80, 48)),
    "sdxl-controlnet": HostCase(
        UNET_CLASS,
        UNET_XL,
        with_(image(4, 16, 16), text(24, y=POOLED, control=lambda random: {"middle": [random(BATCH, 64, 8, 8)]})),
    ),
}
