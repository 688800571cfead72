"""The families of the editor as tiny models of ComfyUI's own classes, and what it takes to sample from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class StockCase:
    """A tiny model, by whose published proportions ComfyUI detects it, or which says what it is.

    module: of the class, below comfy.ldm. config: of the class.
    latent: the shape of the latents; of video with sound, of both, with a "|" between them.
    texts: (generator) to what a CONDITIONING holds, of the positive and of the negative text.
    renamed: parts of ComfyUI's names to what they are in the files of the model's authors.
    metadata: what a file of the authors says of the model beside its weights.
    detected_as: the class of comfy.supported_models for a model that is smaller than ComfyUI takes for granted.
    dtype: of the weights in the file.
    beside: the shapes of weights that the file has beside the diffusion model's, by name.
    """

    module: str
    config: Mapping[str, Any]
    latent: tuple[int | str, ...]
    texts: Callable[[torch.Generator], Tensors]
    cfg: float = 2.0
    renamed: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    detected_as: str | None = None
    dtype: torch.dtype = torch.float32
    beside: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def text(tokens: int, width: int, **others: Callable[[torch.Generator], torch.Tensor]) -> Callable[..., Tensors]:
    """Embeddings (1, tokens, width), and others by the names of a CONDITIONING's options."""

    def make(generator: torch.Generator) -> Tensors:
        made = {name: other(generator) for name, other in others.items()}
        return {"conditioning": torch.randn(1, tokens, width, generator=generator), **made}

    return make


def mask(tokens: int, used: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda _: (torch.arange(tokens) < used).long()[None]


def string(value: str) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda _: torch.tensor(list(value.encode()), dtype=torch.uint8)


def normal(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda generator: torch.randn(shape, generator=generator)


def wan(**config: object) -> dict[str, object]:
    return {"dim": 256, "ffn_dim": 64, "num_heads": 2, "num_layers": 2, **config}


def flux(**config: object) -> dict[str, object]:
    return {
        "in_channels": 16,
        "out_channels": 16,
        "vec_in_dim": 16,
        "context_in_dim": 32,
        "hidden_size": 256,
        "mlp_ratio": 4.0,
        "num_heads": 2,
        "depth": 1,
        "depth_single_blocks": 2,
        "axes_dim": [16, 56, 56],
        "theta": 10000,
        "patch_size": 2,
        "qkv_bias": True,
        "txt_ids_dims": [],
        "guidance_embed": True,
        **config,
    }


def flux_case(cfg: float = 1.0, others: Mapping[str, Any] | None = None, **config: object) -> StockCase:
    """Flux.1 by the names of its first files."""
    sizes = flux(**config)
    texts = text(7, sizes["context_in_dim"], pooled=normal(1, sizes["vec_in_dim"]), **(others or {}))
    return StockCase("flux.model.Flux", sizes, (1, 16, 9, 12), texts, cfg, SCALES)


SCALES = {f"{norm}_norm.weight": f"{norm}_norm.scale" for norm in ("query", "key")}


def qwen(latent: tuple[int, int] = (10, 12), method: str = "index", width: int = 32, **others: Any) -> StockCase:
    """Qwen-Image; method: of references, by the file. width: of the text."""
    sizes = {"attention_head_dim": 128, "num_attention_heads": 2, "joint_attention_dim": width}
    config = {"in_channels": 64, "num_layers": 2, **sizes, "default_ref_method": method}
    module = "qwen_image.model.QwenImageTransformer2DModel"
    return StockCase(module, config, (1, 16, 1, *latent), text(19, width, **others), detected_as="QwenImage")


def zimage(latent: tuple[int, int], tokens: int) -> StockCase:
    """Z-Image's embedding of time is as wide as 1024 at least; its text is Qwen3-4B's."""
    config = {
        "dim": 1024,
        "in_channels": 16,
        "n_layers": 1,
        "n_refiner_layers": 1,
        "n_heads": 8,
        "n_kv_heads": 8,
        "multiple_of": 2,
        "ffn_dim_multiplier": 8 / 3,
        "qk_norm": True,
        "cap_feat_dim": 2560,
        "axes_dims": [32, 48, 48],
        "axes_lens": [1536, 512, 512],
        "rope_theta": 256.0,
        "z_image_modulation": True,
        "time_scale": 1000.0,
        "pad_tokens_multiple": 32,
    }
    texts = text(tokens, 2560, attention_mask=mask(tokens, tokens - 3))
    return StockCase("lumina.model.NextDiT", config, (1, 16, *latent), texts, detected_as="ZImage")


def lumina2(latent: tuple[int, int], tokens: int) -> StockCase:
    config = {
        "patch_size": 2,
        "dim": 192,
        "in_channels": 16,
        "n_layers": 2,
        "n_heads": 6,
        "n_kv_heads": 2,
        "qk_norm": True,
        "cap_feat_dim": 32,
        "axes_dims": [8, 12, 12],
        "axes_lens": [300, 512, 512],
    }
    texts = text(tokens, 32, attention_mask=mask(tokens, tokens - 3), pooled=normal(1, 16))
    return StockCase("lumina.model.NextDiT", config, (1, 16, *latent), texts, detected_as="Lumina2")


def chroma(latent: tuple[int, int]) -> StockCase:
    """Of as many modulations as ComfyUI takes for granted, in as few blocks as have so many."""
    config = {
        **{name: value for name, value in flux().items() if name != "guidance_embed"},
        **{"in_channels": 64, "out_channels": 64, "vec_in_dim": None, "hidden_size": 64, "axes_dim": [8, 12, 12]},
        **{"depth": 28, "depth_single_blocks": 2, "in_dim": 64, "out_dim": 64, "hidden_dim": 48, "n_layers": 2},
    }
    norms = {f"norms.{layer}.weight": f"norms.{layer}.scale" for layer in range(2)}
    texts = text(7, 32, pooled=normal(1, 16))
    return StockCase(
        "chroma.model.Chroma", config, (1, 16, *latent), texts, 2.0, {**SCALES, **norms}, detected_as="Chroma"
    )


def flux2(guidance_embed: bool, text_width: int = 32, **others: Any) -> StockCase:
    config = flux(
        context_in_dim=text_width,
        in_channels=128,
        out_channels=128,
        patch_size=1,
        vec_in_dim=None,
        mlp_ratio=3.0,
        axes_dim=[32] * 4,
        theta=2000,
        qkv_bias=False,
        txt_ids_dims=[3],
        guidance_embed=guidance_embed,
        global_modulation=True,
        mlp_silu_act=True,
        ops_bias=False,
        default_ref_method="index",
        ref_index_scale=10.0,
    )
    return StockCase(
        "flux.model.Flux", config, (1, 128, 5, 7), text(7, text_width, pooled=normal(1, 16), **others), 2.0, SCALES
    )


def auraflow(latent: tuple[int, int], side: int) -> StockCase:
    """side: of the table of positions."""
    config = {
        "dim": 512,
        "global_conddim": 512,
        "n_heads": 2,
        "n_double_layers": 1,
        "n_layers": 2,
        "cond_seq_dim": 32,
        "max_seq": side**2,
    }
    return StockCase("aura.mmdit.MMDiT", config, (1, 4, *latent), text(7, 32), detected_as="AuraFlow")


def cogvideox(**config: object) -> dict[str, object]:
    sizes = {"num_attention_heads": 2, "time_embed_dim": 32, "text_embed_dim": 32, "num_layers": 2}
    return {**sizes, "use_rotary_positional_embeddings": True, **config}


def ltx(**config: object) -> dict[str, object]:
    width = config["num_attention_heads"] * config["attention_head_dim"]
    return {"cross_attention_dim": width, "num_layers": 2, **config}


def hunyuanvideo(**config: object) -> dict[str, object]:
    return {
        "in_channels": 16,
        "out_channels": 16,
        "vec_in_dim": 768,
        "context_in_dim": 32,
        "hidden_size": 256,
        "mlp_ratio": 4.0,
        "num_heads": 2,
        "depth": 1,
        "depth_single_blocks": 2,
        "axes_dim": [16, 56, 56],
        "theta": 256,
        "patch_size": [1, 2, 2],
        "qkv_bias": True,
        "guidance_embed": True,
        "byt5": False,
        "meanflow": False,
        "use_cond_type_embedding": False,
        "vision_in_dim": None,
        "meanflow_sum": False,
        **config,
    }


VIDEO = (1, 16, 2, 8, 12)
REFERENCES = {"list reference_latents": normal(1, 16, 6, 8), "list  reference_latents": normal(1, 16, 10, 4)}
EDITED = {"list reference_latents": normal(1, 16, 1, 6, 10), "list  reference_latents": normal(1, 16, 1, 9, 4)}
INPAINTING = {"concat_latent_image": normal(1, 16, 9, 12), "concat_mask": lambda _: torch.ones(1, 1, 72, 96)}
HUNYUANVIDEO_NAMES = {
    "mlp.0.": "mlp.fc1.",
    "mlp.2.": "mlp.fc2.",
    "txt_in.t_embedder.in_layer.": "txt_in.t_embedder.mlp.0.",
    "txt_in.t_embedder.out_layer.": "txt_in.t_embedder.mlp.2.",
    "txt_in.c_embedder.in_layer.": "txt_in.c_embedder.linear_1.",
    "txt_in.c_embedder.out_layer.": "txt_in.c_embedder.linear_2.",
    "_mod.lin.": "_mod.linear.",
    "_attn.qkv.": "_attn_qkv.",
    "_attn.proj.": "_attn_proj.",
    "_attn.norm.query_norm.": "_attn_q_norm.",
    "_attn.norm.key_norm.": "_attn_k_norm.",
    ".norm.query_norm.": ".q_norm.",
    ".norm.key_norm.": ".k_norm.",
    ".modulation.lin.": ".modulation.linear.",
    "time_in.in_layer.": "time_in.mlp.0.",
    "time_in.out_layer.": "time_in.mlp.2.",
    "guidance_in.in_layer.": "guidance_in.mlp.0.",
    "guidance_in.out_layer.": "guidance_in.mlp.2.",
}
LTX_0_9_5 = {
    "num_attention_heads": 4,
    "attention_head_dim": 12,
    "cross_attention_dim": 48,
    "caption_channels": 32,
    "causal_temporal_positioning": True,
}


def pixart(kind: str) -> StockCase:
    """Of the width that ComfyUI takes for granted; it has no positions for images of less than 256 pixels."""
    is_alpha = kind == "pixart_alpha"
    config = {"image_model": kind, "depth": 1, "model_max_length": 120, "micro_condition": is_alpha}
    return StockCase("pixart.pixartms.PixArtMS", config, (1, 4, 32, 38), text(7, 4096))


def hunyuandit(**config: object) -> StockCase:
    texts = {
        "attention_mask": mask(77, 9),
        "conditioning_mt5xl": normal(1, 256, 2048),
        "attention_mask_mt5xl": mask(256, 12),
    }
    return StockCase("hydit.models.HunYuanDiT", config, (1, 4, 9, 12), text(77, 1024, **texts), dtype=torch.float16)


def sd3(**config: object) -> StockCase:
    config = {
        "in_channels": 16,
        "out_channels": 16,
        "depth": 2,
        "input_size": None,
        "adm_in_channels": 16,
        "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": 32, "out_features": 128}},
        "num_patches": 144,
        "pos_embed_max_size": 12,
        "pos_embed_scaling_factor": None,
        **config,
    }
    texts = text(7, 32, pooled=normal(1, 16))
    return StockCase("modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper", config, (1, 16, 9, 12), texts)


CASES = {
    "sd3": sd3(),
    "sd3.5": sd3(x_block_self_attn_layers=[0], qk_norm="rms"),
    "pixart-alpha": pixart("pixart_alpha"),
    "pixart-sigma": pixart("pixart_sigma"),
    "flux-dev": flux_case(),
    "flux-schnell": flux_case(guidance_embed=False),
    "flux-fill": flux_case(in_channels=96, others=INPAINTING),
    "flux-canny": flux_case(in_channels=32, others={"concat_latent_image": normal(1, 16, 9, 12)}),
    "flux-kontext": flux_case(cfg=2.0, others=REFERENCES),
    "qwen-image": qwen(),
    "qwen-image-masked": qwen((9, 14), attention_mask=mask(19, 16)),
    "qwen-image-edit": qwen(**EDITED),
    "qwen-image-edit-offset": qwen(**EDITED, **{"string reference_latents_method": string("offset")}),
    "qwen-image-edit-2511": qwen(method="index_timestep_zero", **EDITED),
    "qwen-image-edit-clean": qwen(**EDITED, **{"string reference_latents_method": string("index_timestep_zero")}),
    "qwen-image-edit-noisy": qwen(
        method="index_timestep_zero", **EDITED, **{"string reference_latents_method": string("index")}
    ),
    "z-image": zimage((10, 14), 7),
    "z-image-filled": zimage((15, 16), 64),
    "lumina-2": lumina2((10, 14), 7),
    "lumina-2-filled": lumina2((9, 14), 310),
    "chroma": chroma((10, 14)),
    "chroma-filled": chroma((9, 14)),
    "flux-2-dev": flux2(True),
    "flux-2-klein": flux2(False, text_width=12288),  # as Qwen3-8B makes it for the 9B
    "flux-2-edit": flux2(
        True, **{"list reference_latents": normal(1, 128, 3, 5), "list  reference_latents": normal(1, 128, 4, 2)}
    ),
    "auraflow": auraflow((10, 12), 8),
    "auraflow-filled": auraflow((9, 13), 8),
    "auraflow-odd": auraflow((10, 12), 7),
    "wan-2.1-t2v": StockCase("wan.model.WanModel", wan(), VIDEO, text(7, 4096)),
    "wan-2.1-i2v": StockCase(
        "wan.model.WanModel",
        wan(model_type="i2v", in_dim=36),
        VIDEO,
        text(
            512,
            4096,
            **{
                "image clip_vision_output": normal(1, 257, 1280),
                "concat_latent_image": normal(1, 16, 2, 8, 12),
                "concat_mask": lambda generator: torch.ones(1, 1, 2, 8, 12),
            },
        ),
    ),
    "wan-2.2-i2v": StockCase(
        "wan.model.WanModel", wan(in_dim=36), VIDEO, text(7, 4096, concat_latent_image=normal(1, 16, 2, 8, 12))
    ),
    "wan-2.2-5b": StockCase("wan.model.WanModel", wan(in_dim=48, out_dim=48), (1, 48, 2, 8, 12), text(7, 4096)),
    # Detected by the published width.
    "hunyuandit-1.1": hunyuandit(hidden_size=1408, depth=1, size_cond=True, use_style_cond=True),
    "hunyuandit-1.2": hunyuandit(hidden_size=128, depth=4),
    "cogvideox-1.0": StockCase(
        "cogvideo.model.CogVideoXTransformer3DModel", cogvideox(), (1, 16, 2, 9, 12), text(7, 32)
    ),
    "cogvideox-1.5-i2v": StockCase(
        "cogvideo.model.CogVideoXTransformer3DModel",
        cogvideox(in_channels=32, patch_size_t=2, ofs_embed_dim=32),
        (1, 16, 3, 9, 12),
        text(7, 32, concat_latent_image=normal(1, 16, 1, 9, 12)),
    ),
    "cogvideox-1.5-inpaint": StockCase(
        "cogvideo.model.CogVideoXTransformer3DModel",
        cogvideox(in_channels=48, patch_size_t=2),
        (1, 16, 3, 9, 12),
        text(7, 32, concat_latent_image=normal(1, 32, 3, 9, 12)),
    ),
    "ltx-0.9": StockCase(
        "lightricks.model.LTXVModel",
        ltx(num_attention_heads=32, attention_head_dim=4),
        (1, 128, 3, 3, 5),
        text(7, 4096, attention_mask=mask(7, 5)),
    ),
    "ltx-0.9.5": StockCase(
        "lightricks.model.LTXVModel",
        ltx(**LTX_0_9_5),
        (1, 128, 3, 3, 5),
        text(7, 32, attention_mask=mask(7, 5), frame_rate=lambda _: torch.tensor(24.0)),
        metadata=LTX_0_9_5,
    ),
    "hunyuanvideo": StockCase(
        "hunyuan_video.model.HunyuanVideo",
        hunyuanvideo(),
        VIDEO,
        text(7, 32, pooled=normal(1, 768), guidance=lambda _: torch.tensor(4.0)),
        renamed=HUNYUANVIDEO_NAMES,
    ),
    "hunyuanvideo-i2v-resaved": StockCase(
        "hunyuan_video.model.HunyuanVideo",
        hunyuanvideo(in_channels=33, guidance_embed=False),
        VIDEO,
        text(
            70,
            32,
            pooled=normal(1, 768),
            concat_latent_image=normal(1, 16, 2, 8, 12),
            concat_mask=lambda _: torch.cat([torch.zeros(1, 1, 1, 8, 12), torch.ones(1, 1, 1, 8, 12)], 2),
        ),
    ),
    "hunyuanvideo-skyreels-i2v": StockCase(
        "hunyuan_video.model.HunyuanVideo",
        hunyuanvideo(in_channels=32, guidance_embed=False),
        VIDEO,
        text(7, 32, pooled=normal(1, 768), concat_latent_image=normal(1, 16, 2, 8, 12)),
        renamed=HUNYUANVIDEO_NAMES,
    ),
}
