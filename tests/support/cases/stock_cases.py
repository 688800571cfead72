"""The families of the editor as tiny models of ComfyUI's own classes, and what it takes to sample from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.support.cases.host.flux import CHROMA, FLUX, FLUX2
from tests.support.cases.host.image import AURA
from tests.support.cases.host.lumina import LUMINA, Z_IMAGE
from tests.support.cases.host.video import HUNYUAN

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


def normal(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda generator: torch.randn(shape, generator=generator)


def wan(**config: object) -> dict[str, object]:
    return {"dim": 256, "ffn_dim": 64, "num_heads": 2, "num_layers": 2, **config}


def flux(**config: object) -> dict[str, object]:
    own = {"vec_in_dim": 16, "context_in_dim": 32, "hidden_size": 256, "num_heads": 2, "axes_dim": [16, 56, 56]}
    return FLUX | own | {"depth": 1, "depth_single_blocks": 2} | config


def flux_case(cfg: float = 1.0, others: Mapping[str, Any] | None = None, **config: object) -> StockCase:
    """Flux.1 by the names of its first files."""
    sizes = flux(**config)
    texts = text(7, sizes["context_in_dim"], pooled=normal(1, sizes["vec_in_dim"]), **(others or {}))
    return StockCase("flux.model.Flux", sizes, (1, 16, 9, 12), texts, cfg, SCALES)


def full_width(depth: int, singles: int, **others: Any) -> StockCase:
    """Flux.1 but for its depth."""
    case = flux_case(
        hidden_size=3072, num_heads=24, depth=depth, depth_single_blocks=singles, context_in_dim=4096, vec_in_dim=768
    )
    return replace(case, **others)


SCALES = {f"{norm}_norm.weight": f"{norm}_norm.scale" for norm in ("query", "key")}


def qwen(latent: tuple[int, int] = (10, 12), method: str = "index", width: int = 32, **others: Any) -> StockCase:
    """Qwen-Image; method: of references, by the file. width: of the text."""
    sizes = {"attention_head_dim": 128, "num_attention_heads": 2, "joint_attention_dim": width}
    config = {"in_channels": 64, "num_layers": 2, **sizes, "default_ref_method": method}
    module = "qwen_image.model.QwenImageTransformer2DModel"
    return StockCase(module, config, (1, 16, 1, *latent), text(19, width, **others), detected_as="QwenImage")


def zimage() -> StockCase:
    """Z-Image's embedding of time is as wide as 1024 at least; its text is Qwen3-4B's."""
    config = Z_IMAGE | {
        **{"dim": 1024, "n_layers": 1, "n_refiner_layers": 1, "n_heads": 8, "n_kv_heads": 8, "multiple_of": 2},
        **{"ffn_dim_multiplier": 8 / 3, "cap_feat_dim": 2560},
        **{"axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512]},
    }
    texts = text(7, 2560, attention_mask=mask(7, 4))
    return StockCase("lumina.model.NextDiT", config, (1, 16, 10, 14), texts, detected_as="ZImage")


def lumina2() -> StockCase:
    config = LUMINA | {"dim": 192, "n_layers": 2, "n_heads": 6, "axes_dims": [8, 12, 12]}
    texts = text(7, 32, attention_mask=mask(7, 4), pooled=normal(1, 16))
    return StockCase("lumina.model.NextDiT", config, (1, 16, 10, 14), texts, detected_as="Lumina2")


def chroma() -> StockCase:
    """Of as many modulations as ComfyUI takes for granted, in as few blocks as have so many."""
    config = CHROMA | {
        **{"context_in_dim": 32, "num_heads": 2, "axes_dim": [8, 12, 12]},
        **{"depth": 28, "depth_single_blocks": 2, "hidden_dim": 48, "n_layers": 2},
    }
    norms = {f"norms.{layer}.weight": f"norms.{layer}.scale" for layer in range(2)}
    texts = text(7, 32, pooled=normal(1, 16))
    return StockCase(
        "chroma.model.Chroma", config, (1, 16, 10, 14), texts, 2.0, {**SCALES, **norms}, detected_as="Chroma"
    )


def flux2(guidance_embed: bool, text_width: int = 32, **others: Any) -> StockCase:
    config = FLUX2 | {
        **{"context_in_dim": text_width, "in_channels": 128, "out_channels": 128, "hidden_size": 256, "num_heads": 2},
        **{"depth": 1, "depth_single_blocks": 2, "mlp_ratio": 3.0, "axes_dim": [32] * 4},
        "guidance_embed": guidance_embed,
    }
    return StockCase(
        "flux.model.Flux", config, (1, 128, 5, 7), text(7, text_width, pooled=normal(1, 16), **others), 2.0, SCALES
    )


def auraflow() -> StockCase:
    config = AURA | {
        **{"dim": 512, "global_conddim": 512, "n_heads": 2, "n_double_layers": 1, "n_layers": 2},
        **{"cond_seq_dim": 32, "max_seq": 8**2},
    }
    return StockCase("aura.mmdit.MMDiT", config, (1, 4, 10, 12), text(7, 32), detected_as="AuraFlow")


def ltx_case(config: Mapping[str, Any], width: int, **more: Any) -> StockCase:
    """width: of the text. more: beside the text and its mask. The file says what a model is that has more."""
    inside = {"cross_attention_dim": config["num_attention_heads"] * config["attention_head_dim"], "num_layers": 2}
    texts = text(7, width, attention_mask=mask(7, 5), **more)
    metadata = config if more else {}
    return StockCase("lightricks.model.LTXVModel", inside | config, (1, 128, 3, 3, 5), texts, metadata=metadata)


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


def hunyuandit() -> StockCase:
    texts = {
        "attention_mask": mask(77, 9),
        "conditioning_mt5xl": normal(1, 256, 2048),
        "attention_mask_mt5xl": mask(256, 12),
    }
    config = {"hidden_size": 128, "depth": 4}
    return StockCase("hydit.models.HunYuanDiT", config, (1, 4, 9, 12), text(77, 1024, **texts), dtype=torch.float16)


def sd3(width: int = 32, pooled: int = 16, **config: object) -> StockCase:
    """width, pooled: of the text."""
    config = {
        "in_channels": 16,
        "out_channels": 16,
        "depth": 2,
        "input_size": None,
        "adm_in_channels": pooled,
        "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": width, "out_features": 128}},
        "num_patches": 144,
        "pos_embed_max_size": 12,
        "pos_embed_scaling_factor": None,
        **config,
    }
    texts = text(7, width, pooled=normal(1, pooled))
    return StockCase("modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper", config, (1, 16, 9, 12), texts)


def wan_case(config: Mapping[str, Any], latent: tuple[int, ...] = VIDEO, tokens: int = 7, **more: Any) -> StockCase:
    """more: beside the text."""
    return StockCase("wan.model.WanModel", config, latent, text(tokens, 4096, **more))


def cogvideox_case(config: Mapping[str, Any], frames: int = 3, **more: Any) -> StockCase:
    sizes = {"num_attention_heads": 2, "time_embed_dim": 32, "text_embed_dim": 32, "num_layers": 2}
    config = {**sizes, "use_rotary_positional_embeddings": True, **config}
    module = "cogvideo.model.CogVideoXTransformer3DModel"
    return StockCase(module, config, (1, 16, frames, 9, 12), text(7, 32, **more))


def hunyuanvideo_case(
    config: Mapping[str, Any], renamed: Mapping[str, str] | None = None, tokens: int = 7, **more: Any
) -> StockCase:
    own = {"vec_in_dim": 768, "context_in_dim": 32, "hidden_size": 256, "num_heads": 2, "axes_dim": [16, 56, 56]}
    texts = text(tokens, 32, pooled=normal(1, 768), **more)
    config = HUNYUAN | own | {"depth": 1} | config
    return StockCase("hunyuan_video.model.HunyuanVideo", config, VIDEO, texts, renamed=renamed or {})


CASES = {
    "sd3": sd3(),
    "sd3.5": sd3(x_block_self_attn_layers=[0], qk_norm="rms"),
    "pixart-alpha": pixart("pixart_alpha"),
    "pixart-sigma": pixart("pixart_sigma"),
    "flux-dev": flux_case(),
    "flux-schnell": flux_case(guidance_embed=False),
    "flux-fill": flux_case(in_channels=96, others=INPAINTING),
    "flux-kontext": flux_case(cfg=2.0, others=REFERENCES),
    "qwen-image": qwen(),
    "qwen-image-masked": qwen((9, 14), attention_mask=mask(19, 16)),
    "qwen-image-edit": qwen(**EDITED),
    "qwen-image-edit-2511": qwen(method="index_timestep_zero", **EDITED),
    "z-image": zimage(),
    "lumina-2": lumina2(),
    "chroma": chroma(),
    "flux-2-dev": flux2(True),
    "flux-2-klein": flux2(False, text_width=12288),  # as Qwen3-8B makes it for the 9B
    "flux-2-edit": flux2(
        True, **{"list reference_latents": normal(1, 128, 3, 5), "list  reference_latents": normal(1, 128, 4, 2)}
    ),
    "auraflow": auraflow(),
    "wan-2.1-t2v": wan_case(wan()),
    "wan-2.1-i2v": wan_case(
        wan(model_type="i2v", in_dim=36),
        tokens=512,
        **{"image clip_vision_output": normal(1, 257, 1280)},
        concat_latent_image=normal(1, 16, 2, 8, 12),
        concat_mask=lambda generator: torch.ones(1, 1, 2, 8, 12),
    ),
    "wan-2.2-5b": wan_case(wan(in_dim=48, out_dim=48), (1, 48, 2, 8, 12)),
    "hunyuandit-1.2": hunyuandit(),
    "cogvideox-1.0": cogvideox_case({}, 2),
    "cogvideox-1.5-i2v": cogvideox_case(
        {"in_channels": 32, "patch_size_t": 2, "ofs_embed_dim": 32}, concat_latent_image=normal(1, 16, 1, 9, 12)
    ),
    "ltx-0.9": ltx_case({"num_attention_heads": 32, "attention_head_dim": 4}, 4096),
    "ltx-0.9.5": ltx_case(LTX_0_9_5, 32, frame_rate=lambda _: torch.tensor(24.0)),
    "hunyuanvideo": hunyuanvideo_case({}, HUNYUANVIDEO_NAMES, guidance=lambda _: torch.tensor(4.0)),
    "hunyuanvideo-i2v-resaved": hunyuanvideo_case(
        {"in_channels": 33, "guidance_embed": False},
        tokens=70,
        concat_latent_image=normal(1, 16, 2, 8, 12),
        concat_mask=lambda _: torch.cat([torch.zeros(1, 1, 1, 8, 12), torch.ones(1, 1, 1, 8, 12)], 2),
    ),
}
# Those that have a size of the published model's: a width, or several blocks of a kind. To weigh: as deep as half of
# Flux.1's, of a sixth of its width; a third of Wan 14B's depth, of a fifth of its width. To time: an image of 1024×1024
# with as long a text as Flux.1's.
TO_WEIGH = replace(flux_case(hidden_size=512, num_heads=4, depth=10, depth_single_blocks=20), dtype=torch.bfloat16)
TO_TIME = {"latent": (1, 16, 128, 128), "texts": text(512, 4096, pooled=normal(1, 768)), "dtype": torch.bfloat16}
SIZED_CASES = {
    "flux-to-weigh": TO_WEIGH,
    "flux-to-weigh-soon": replace(TO_WEIGH, config={**TO_WEIGH.config, "depth": 2, "depth_single_blocks": 4}),
    "wan-to-weigh": replace(wan_case(wan(dim=1024, ffn_dim=4096, num_heads=8, num_layers=14)), dtype=torch.bfloat16),
    "flux-to-time": full_width(3, 6, **TO_TIME),  # 3.7 GB in bf16, 1.9 of Flux.1's 12 billion weights
    "flux-to-time-small": full_width(1, 2, **TO_TIME),
    "flux-full-width": full_width(1, 1),
    "flux-deep": flux_case(depth=3, depth_single_blocks=6),
    # For a text that its own encoders make.
    "flux-dev-encoded": flux_case(context_in_dim=4096, vec_in_dim=768, depth_single_blocks=1),
}
