"""The families of the editor as tiny models of ComfyUI's own classes, and what it takes to sample from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class StockCase:
    """A tiny model, by whose published proportions ComfyUI detects it.

    module: of the class, below comfy.ldm. config: of the class.
    latent: the shape of the latents.
    texts: (generator) to what a CONDITIONING holds, of the positive and of the negative text.
    renamed: parts of ComfyUI's names to what they are in the files of the model's authors.
    metadata: what a file of the authors says of the model beside its weights.
    """

    module: str
    config: Mapping[str, Any]
    latent: tuple[int, ...]
    texts: Callable[[torch.Generator], Tensors]
    cfg: float = 2.0
    renamed: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def text(tokens: int, width: int, **others: Callable[[torch.Generator], torch.Tensor]) -> Callable[..., Tensors]:
    """Embeddings (1, tokens, width), and others by the names of a CONDITIONING's options."""

    def make(generator: torch.Generator) -> Tensors:
        made = {name: other(generator) for name, other in others.items()}
        return {"conditioning": torch.randn(1, tokens, width, generator=generator), **made}

    return make


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
    names = {"query_norm.weight": "query_norm.scale", "key_norm.weight": "key_norm.scale"}
    return StockCase("flux.model.Flux", sizes, (1, 16, 9, 12), texts, cfg, names)


def mask(tokens: int, used: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda _generator: (torch.arange(tokens) < used).long()[None]


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
INPAINTING = {"concat_latent_image": normal(1, 16, 9, 12), "concat_mask": lambda _: torch.ones(1, 1, 72, 96)}
HUNYUANDIT_TEXT = {
    "attention_mask": mask(77, 9),
    "conditioning_mt5xl": normal(1, 256, 2048),
    "attention_mask_mt5xl": mask(256, 12),
}
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
    return StockCase("pixart.pixartms.PixArtMS", config, (1, 4, 40, 46), text(7, 4096))


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
        "wan.model.WanModel",
        wan(in_dim=36),
        VIDEO,
        text(7, 4096, concat_latent_image=normal(1, 16, 2, 8, 12)),
    ),
    "wan-2.2-5b": StockCase(
        "wan.model.WanModel",
        wan(in_dim=48, out_dim=48),
        (1, 48, 2, 8, 12),
        text(7, 4096),
    ),
    "hunyuandit-1.1": StockCase(  # detected by the published width
        "hydit.models.HunYuanDiT",
        {"hidden_size": 1408, "depth": 1, "size_cond": True, "use_style_cond": True},
        (1, 4, 9, 12),
        text(77, 1024, **HUNYUANDIT_TEXT),
    ),
    "hunyuandit-1.2": StockCase(
        "hydit.models.HunYuanDiT",
        {"hidden_size": 128, "depth": 4},
        (1, 4, 9, 12),
        text(77, 1024, **HUNYUANDIT_TEXT),
    ),
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
    "hunyuanvideo-i2v, saved by ComfyUI": StockCase(
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
FULL_WIDTH = flux_case(
    hidden_size=3072, num_heads=24, depth=1, depth_single_blocks=1, context_in_dim=4096, vec_in_dim=768
)
