"""Models of published widths, of a few layers, by which ComfyUI knows their families: their headers without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.support.cases.stock_cases import SCALES


class Published(NamedTuple):
    """module, config: of ComfyUI's class, below comfy.ldm. renamed, prefix: what the names in the file are."""

    module: str
    config: Mapping[str, Any]
    renamed: Mapping[str, str] = {}
    prefix: str = ""


NEXT_DIT = {"patch_size": 2, "in_channels": 16, "n_layers": 2, "qk_norm": True}
FLUX_2 = {
    "in_channels": 128,
    "out_channels": 128,
    "vec_in_dim": None,
    "mlp_ratio": 3.0,
    "depth": 1,
    "depth_single_blocks": 2,
    "axes_dim": [32] * 4,
    "theta": 2000,
    "patch_size": 1,
    "qkv_bias": False,
    "txt_ids_dims": [3],
    "global_modulation": True,
    "mlp_silu_act": True,
    "ops_bias": False,
}
CHROMA = {
    "in_channels": 64,
    "out_channels": 64,
    "vec_in_dim": None,
    "context_in_dim": 4096,
    "hidden_size": 3072,
    "mlp_ratio": 4.0,
    "num_heads": 24,
    "depth": 19,
    "depth_single_blocks": 38,
    "axes_dim": [16, 56, 56],
    "theta": 10000,
    "patch_size": 2,
    "qkv_bias": True,
    "txt_ids_dims": [],
    "in_dim": 64,
    "out_dim": 3072,
    "hidden_dim": 5120,
    "n_layers": 5,
}
Z_IMAGE = {"dim": 3840, "n_heads": 30, "n_kv_heads": 30, "cap_feat_dim": 2560, "axes_dims": [32, 48, 48]}
NORMS = {f"norms.{layer}.weight": f"norms.{layer}.scale" for layer in range(5)}
QWEN = "qwen_image.model.QwenImageTransformer2DModel"
PUBLISHED = {
    "Qwen-Image": Published(QWEN, {"num_layers": 2}),
    "Qwen-Image-Edit-2511": Published(QWEN, {"num_layers": 2, "default_ref_method": "index_timestep_zero"}),
    "Z-Image": Published(
        "lumina.model.NextDiT",
        {
            **{**NEXT_DIT, **Z_IMAGE, "ffn_dim_multiplier": 8 / 3},
            **{"z_image_modulation": True, "pad_tokens_multiple": 32},
        },
    ),
    "Lumina Image 2.0": Published(
        "lumina.model.NextDiT",
        {**NEXT_DIT, "dim": 2304, "n_heads": 24, "n_kv_heads": 8, "cap_feat_dim": 2304, "axes_dims": [32, 32, 32]},
        prefix="model.diffusion_model.",
    ),
    "Chroma": Published("chroma.model.Chroma", CHROMA, {**SCALES, **NORMS}),
    "Flux.2 dev": Published(
        "flux.model.Flux",
        {**FLUX_2, "hidden_size": 6144, "num_heads": 48, "context_in_dim": 15360, "guidance_embed": True},
        SCALES,
    ),
    "Flux.2 klein": Published(
        "flux.model.Flux",
        {**FLUX_2, "hidden_size": 3072, "num_heads": 24, "context_in_dim": 7680, "guidance_embed": False},
        SCALES,
    ),
    "AuraFlow": Published("aura.mmdit.MMDiT", {"n_double_layers": 4, "n_layers": 6, "max_seq": 96 * 96}),
}
