"""Cases of `stock_cases` as diffusers has them: its class, and the config of it."""

from __future__ import annotations

from typing import Any

FOLDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sd3.5": (
        "SD3Transformer2DModel",
        {
            "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": 2, "attention_head_dim": 64,
            "num_attention_heads": 2, "joint_attention_dim": 32, "caption_projection_dim": 128,
            "pooled_projection_dim": 16, "pos_embed_max_size": 12, "dual_attention_layers": [0], "qk_norm": "rms_norm",
        },
    ),
    "flux-2-dev": (
        "Flux2Transformer2DModel",
        {
            "in_channels": 128, "out_channels": 128, "num_layers": 1, "num_single_layers": 2, "attention_head_dim": 128,
            "num_attention_heads": 2, "joint_attention_dim": 32, "patch_size": 1, "mlp_ratio": 3.0,
            "axes_dims_rope": [32] * 4, "rope_theta": 2000, "guidance_embeds": True,
        },
    ),
    "wan-2.1-t2v": (
        "WanTransformer3DModel",
        {
            "patch_size": [1, 2, 2], "num_attention_heads": 2, "attention_head_dim": 128, "in_channels": 16,
            "out_channels": 16, "text_dim": 4096, "freq_dim": 256, "ffn_dim": 64, "num_layers": 2, "image_dim": None,
            "added_kv_proj_dim": None, "pos_embed_seq_len": None,
        },
    ),
    "ltx-0.9": (
        "LTXVideoTransformer3DModel",
        {
            "in_channels": 128, "out_channels": 128, "num_attention_heads": 32, "attention_head_dim": 4,
            "cross_attention_dim": 128, "num_layers": 2, "caption_channels": 4096,
        },
    ),
}  # fmt: skip
