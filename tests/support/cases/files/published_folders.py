"""Published models of diffusers by their configs, few layers of them where ComfyUI counts them, and the class of
`comfy.supported_models` that ComfyUI is to take each for."""

from __future__ import annotations

from typing import Any

FLUX = {
    "in_channels": 64, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 128, "num_attention_heads": 24,
    "joint_attention_dim": 4096, "pooled_projection_dim": 768, "guidance_embeds": True, "axes_dims_rope": [16, 56, 56],
}  # fmt: skip
WAN = {
    "patch_size": [1, 2, 2], "num_attention_heads": 40, "attention_head_dim": 128, "in_channels": 16,
    "out_channels": 16, "text_dim": 4096, "freq_dim": 256, "ffn_dim": 13824, "num_layers": 2,
}  # fmt: skip
WAN_I2V = WAN | {"in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120}
QWEN = {
    "patch_size": 2, "in_channels": 64, "out_channels": 16, "num_layers": 2, "attention_head_dim": 128,
    "num_attention_heads": 24, "joint_attention_dim": 3584, "axes_dims_rope": [16, 56, 56],
}  # fmt: skip
HUNYUAN_VIDEO = {
    "in_channels": 16, "out_channels": 16, "num_attention_heads": 24, "attention_head_dim": 128, "num_layers": 2,
    "num_single_layers": 2, "num_refiner_layers": 2, "guidance_embeds": True, "text_embed_dim": 4096,
    "pooled_projection_dim": 768, "rope_axes_dim": [16, 56, 56],
}  # fmt: skip
HUNYUAN_DIT = {
    "num_attention_heads": 16, "attention_head_dim": 88, "in_channels": 4, "patch_size": 2, "sample_size": 128,
    "hidden_size": 1408, "num_layers": 40, "mlp_ratio": 4.3637, "cross_attention_dim": 1024,
    "cross_attention_dim_t5": 2048, "pooled_projection_dim": 1024, "text_len": 77, "text_len_t5": 256,
}  # fmt: skip
COGVIDEOX = {
    "num_attention_heads": 48, "attention_head_dim": 64, "in_channels": 16, "out_channels": 16, "time_embed_dim": 512,
    "text_embed_dim": 4096, "num_layers": 2, "sample_width": 90, "sample_height": 60, "sample_frames": 49,
    "use_rotary_positional_embeddings": True,
}  # fmt: skip
SD3 = {
    "sample_size": 128, "in_channels": 16, "out_channels": 16, "num_layers": 24, "attention_head_dim": 64,
    "num_attention_heads": 24, "joint_attention_dim": 4096, "caption_projection_dim": 1536,
    "pooled_projection_dim": 2048, "pos_embed_max_size": 192,
}  # fmt: skip
PIXART = {
    "num_attention_heads": 16, "attention_head_dim": 72, "num_layers": 28, "cross_attention_dim": 1152,
    "sample_size": 128, "caption_channels": 4096, "in_channels": 4,
}  # fmt: skip

# A diffusers class, its config, and the class of `comfy.supported_models`.
PUBLISHED_FOLDERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "auraflow-0.3": (
        "AuraFlowTransformer2DModel",
        {
            "sample_size": 64, "patch_size": 2, "in_channels": 4, "num_mmdit_layers": 4, "num_single_dit_layers": 32,
            "attention_head_dim": 256, "num_attention_heads": 12, "joint_attention_dim": 2048,
            "caption_projection_dim": 3072, "pos_embed_max_size": 9216,
        },
        "AuraFlow",
    ),
    "chroma-1": (
        "ChromaTransformer2DModel",
        {
            "in_channels": 64, "num_layers": 19, "num_single_layers": 38, "attention_head_dim": 128,
            "num_attention_heads": 24, "joint_attention_dim": 4096, "axes_dims_rope": [16, 56, 56],
            "approximator_num_channels": 64, "approximator_hidden_dim": 5120, "approximator_layers": 5,
        },
        "Chroma",
    ),
    "cogvideox-5b": ("CogVideoXTransformer3DModel", COGVIDEOX, "CogVideoX_T2V"),
    "cogvideox-5b-i2v": (
        "CogVideoXTransformer3DModel",
        COGVIDEOX | {"in_channels": 32, "use_learned_positional_embeddings": True},
        "CogVideoX_I2V",
    ),
    "cogvideox-1.5-5b-i2v": (
        "CogVideoXTransformer3DModel",
        COGVIDEOX
        | {"in_channels": 32, "patch_size_t": 2, "ofs_embed_dim": 512, "patch_bias": False, "sample_frames": 81},
        "CogVideoX_I2V",
    ),
    "flux-1-dev": ("FluxTransformer2DModel", FLUX, "Flux"),
    "flux-1-schnell": ("FluxTransformer2DModel", FLUX | {"guidance_embeds": False}, "FluxSchnell"),
    "flux-1-fill-dev": ("FluxTransformer2DModel", FLUX | {"in_channels": 384, "out_channels": 64}, "FluxInpaint"),
    "flux-2-dev": (
        "Flux2Transformer2DModel",
        {
            "in_channels": 128, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 128,
            "num_attention_heads": 48, "joint_attention_dim": 15360, "timestep_guidance_channels": 256,
            "mlp_ratio": 3.0, "axes_dims_rope": [32] * 4, "guidance_embeds": True,
        },
        "Flux2",
    ),
    "flux-2-klein-4b": (
        "Flux2Transformer2DModel",
        {
            "in_channels": 128, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 128,
            "num_attention_heads": 24, "joint_attention_dim": 7680, "timestep_guidance_channels": 256,
            "mlp_ratio": 3.0, "axes_dims_rope": [32] * 4, "guidance_embeds": False,
        },
        "Flux2",
    ),
    "hunyuandit-1.1": (
        "HunyuanDiT2DModel",
        HUNYUAN_DIT | {"use_style_cond_and_image_meta_size": True},
        "HunyuanDiT1",
    ),
    "hunyuandit-1.2": (
        "HunyuanDiT2DModel",
        HUNYUAN_DIT | {"use_style_cond_and_image_meta_size": False},
        "HunyuanDiT",
    ),
    "hunyuanvideo": ("HunyuanVideoTransformer3DModel", HUNYUAN_VIDEO, "HunyuanVideo"),
    "hunyuanvideo-i2v": (
        "HunyuanVideoTransformer3DModel",
        HUNYUAN_VIDEO | {"in_channels": 33, "guidance_embeds": False},
        "HunyuanVideoI2V",
    ),
    "ltx-video-0.9": (
        "LTXVideoTransformer3DModel",
        {
            "in_channels": 128, "out_channels": 128, "num_attention_heads": 32, "attention_head_dim": 64,
            "cross_attention_dim": 2048, "num_layers": 2, "caption_channels": 4096,
        },
        "LTXV",
    ),
    "ltx-video-0.9.7-13b": (
        "LTXVideoTransformer3DModel",
        {
            "in_channels": 128, "out_channels": 128, "num_attention_heads": 32, "attention_head_dim": 128,
            "cross_attention_dim": 4096, "num_layers": 2, "caption_channels": 4096,
        },
        "LTXV",
    ),
    "lumina-2": (
        "Lumina2Transformer2DModel",
        {
            "sample_size": 128, "in_channels": 16, "hidden_size": 2304, "num_layers": 2, "num_refiner_layers": 2,
            "num_attention_heads": 24, "num_kv_heads": 8, "multiple_of": 256, "axes_dim_rope": [32, 32, 32],
            "axes_lens": [300, 512, 512], "cap_feat_dim": 2304,
        },
        "Lumina2",
    ),
    "pixart-alpha": ("PixArtTransformer2DModel", PIXART | {"use_additional_conditions": True}, "PixArtAlpha"),
    "pixart-sigma": ("PixArtTransformer2DModel", PIXART | {"use_additional_conditions": False}, "PixArtSigma"),
    "qwen-image": ("QwenImageTransformer2DModel", QWEN, "QwenImage"),
    "qwen-image-edit-2511": ("QwenImageTransformer2DModel", QWEN | {"zero_cond_t": True}, "QwenImage"),
    "qwen-image-layered": ("QwenImageTransformer2DModel", QWEN | {"use_additional_t_cond": True}, "QwenImage"),
    "sd3-medium": ("SD3Transformer2DModel", SD3, "SD3"),
    "sd3.5-medium": (
        "SD3Transformer2DModel",
        SD3 | {"qk_norm": "rms_norm", "dual_attention_layers": list(range(13)), "pos_embed_max_size": 384},
        "SD3",
    ),
    "wan-2.1-t2v-14b": ("WanTransformer3DModel", WAN, "WAN21_T2V"),
    "wan-2.1-i2v-14b": ("WanTransformer3DModel", WAN_I2V, "WAN21_I2V"),
    "wan-2.1-flf2v-14b": ("WanTransformer3DModel", WAN_I2V | {"pos_embed_seq_len": 514}, "WAN21_I2V"),
    "wan-2.1-vace-14b": (
        "WanVACETransformer3DModel",
        WAN | {"num_layers": 10, "vace_layers": [0, 5], "vace_in_channels": 96},
        "WAN21_Vace",
    ),
    "wan-2.2-animate-14b": (
        "WanAnimateTransformer3DModel",
        WAN_I2V | {"num_layers": 10, "latent_channels": 16},
        "WAN22_Animate",
    ),
    "wan-2.2-i2v-14b": ("WanTransformer3DModel", WAN | {"in_channels": 36}, "WAN21_T2V"),
    "wan-2.2-ti2v-5b": (
        "WanTransformer3DModel",
        WAN | {"num_attention_heads": 24, "in_channels": 48, "out_channels": 48, "ffn_dim": 14336},
        "WAN22_T2V",
    ),
    "z-image-turbo": (
        "ZImageTransformer2DModel",
        {
            "in_channels": 16, "dim": 3840, "n_layers": 2, "n_refiner_layers": 2, "n_heads": 30, "n_kv_heads": 30,
            "cap_feat_dim": 2560, "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512],
        },
        "ZImage",
    ),
}  # fmt: skip
