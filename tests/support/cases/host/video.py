"""HunyuanVideo and HunyuanImage, Cosmos, Anima, CogVideoX, Mochi, Kandinsky 5."""

from __future__ import annotations

import torch

from tests.support.cases.host.base import (
    BATCH,
    SIGMA,
    TEXT,
    HostCase,
    always,
    guidance,
    image,
    latents,
    rows,
    text,
    video,
    with_,
)

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
COSMOS = {
    "max_img_h": 240, "max_img_w": 240, "max_frames": 128, "in_channels": 16, "out_channels": 16, "patch_spatial": 2,
    "patch_temporal": 1, "model_channels": 64, "num_blocks": 3, "num_heads": 4, "crossattn_emb_channels": 24,
    "pos_emb_cls": "rope3d", "use_adaln_lora": True, "adaln_lora_dim": 16, "extra_per_block_abs_pos_emb": False,
}  # fmt: skip
COSMOS_1 = COSMOS | {
    "block_x_format": "THWBD", "affline_emb_norm": True, "extra_per_block_abs_pos_emb": True,
    "extra_per_block_abs_pos_emb_type": "learnable", "pos_emb_learnable": False, "pos_emb_interpolation": "crop",
}  # fmt: skip
COGVIDEOX = {
    "num_attention_heads": 4, "attention_head_dim": 16, "time_embed_dim": 32, "text_embed_dim": 24, "num_layers": 3,
    "use_rotary_positional_embeddings": True,
}  # fmt: skip
MOCHI = {
    "patch_size": 2, "in_channels": 12, "hidden_size_x": 48, "hidden_size_y": 32, "depth": 3, "num_heads": 4,
    "mlp_ratio_x": 256.0, "use_t5": True, "t5_feat_dim": 24, "t5_token_length": 16, "learn_sigma": False,
    "qkv_bias": False, "out_bias": True, "qk_norm": True,
}  # fmt: skip
KANDINSKY = {
    "in_text_dim": 24, "in_text_dim2": 20, "time_dim": 32, "model_dim": 64, "ff_dim": 96, "visual_embed_dim": 64,
    "num_text_blocks": 2, "num_visual_blocks": 3, "axes_dims": (4, 6, 6),
}  # fmt: skip
WORDS = 11  # of a text, for Anima
POOLED, FRAME_RATE = rows(32), always(torch.tensor([24.0]))
PREDICT_2 = "comfy.ldm.cosmos.predict2.MiniTrainDIT"
HUNYUAN_VIDEO = "comfy.ldm.hunyuan_video.model.HunyuanVideo"


def shorten_adapter(model):
    """Leaves the adapter of texts two of its six layers, and of its words those that the case has."""
    del model.llm_adapter.blocks[2:]
    words = model.llm_adapter.embed
    words.weight = torch.nn.Parameter(words.weight[: BATCH * WORDS].clone())


CASES: dict[str, HostCase] = {
    "hunyuanvideo": HostCase(
        HUNYUAN_VIDEO,
        HUNYUAN,
        with_(
            video(16),
            text(24, y=POOLED, guidance=guidance, attention_mask=lambda _random: (torch.arange(TEXT)[None] < 9).long()),
        ),
    ),
    "hunyuanvideo-i2v": HostCase(
        HUNYUAN_VIDEO,
        HUNYUAN,
        with_(video(16), text(24, y=POOLED, guidance=guidance, guiding_frame_index=always(torch.zeros(BATCH)))),
    ),
    "hunyuanvideo-15": HostCase(
        HUNYUAN_VIDEO, HUNYUAN_15, with_(video(16, 5, 7), text(24, txt_byt5=rows(5, 1472), clip_fea=rows(9, 20)))
    ),
    "hunyuanimage-21": HostCase(
        HUNYUAN_VIDEO, HUNYUAN_IMAGE, with_(image(16, 7, 11), text(24, txt_byt5=rows(5, 1472), guidance=guidance))
    ),
    "cosmos1": HostCase(
        "comfy.ldm.cosmos.model.GeneralDIT", COSMOS_1, with_(video(16, sigma=SIGMA), text(24, fps=FRAME_RATE))
    ),
    "cosmos-predict2": HostCase(PREDICT_2, COSMOS, with_(video(16, sigma=SIGMA), text(24, fps=FRAME_RATE))),
    "cosmos-predict2-timestep-by-frame": HostCase(
        PREDICT_2,
        COSMOS | {"extra_per_block_abs_pos_emb": True},
        with_(
            lambda random: ((random(BATCH, 16, 3, 10, 14), torch.tensor([[0.0, SIGMA, SIGMA]] * BATCH)), {}),
            text(24, fps=FRAME_RATE),
        ),
    ),
    "anima": HostCase(
        "comfy.ldm.anima.model.Anima",
        COSMOS | {"crossattn_emb_channels": 1024, "num_blocks": 2},
        with_(
            latents(16, 1, 14, 22),
            text(1024, t5xxl_ids=lambda _random: torch.arange(BATCH * WORDS).reshape(BATCH, WORDS)),
        ),
        shorten=shorten_adapter,
    ),
    "cogvideox": HostCase(
        "comfy.ldm.cogvideo.model.CogVideoXTransformer3DModel", COGVIDEOX, with_(video(16), text(24))
    ),
    "mochi": HostCase(
        "comfy.ldm.genmo.joint_model.asymm_models_joint.AsymmDiTJoint",
        MOCHI,
        with_(
            video(12, sigma=SIGMA),
            lambda random: {
                "context": random(BATCH, 16, 24),
                "attention_mask": torch.ones(BATCH, 16, dtype=torch.bool),
                "num_tokens": 11,
            },
        ),
    ),
    "kandinsky5": HostCase("comfy.ldm.kandinsky5.model.Kandinsky5", KANDINSKY, with_(video(16), text(24, y=rows(20)))),
}
