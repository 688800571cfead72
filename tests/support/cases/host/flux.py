"""Flux.1 and Flux.2, and Chroma."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.support.cases.host.base import BATCH, HostCase, always, guidance, image, rows, text, with_

FLUX = {
    "image_model": "flux", "in_channels": 16, "out_channels": 16, "vec_in_dim": 32, "context_in_dim": 64,
    "hidden_size": 64, "mlp_ratio": 4.0, "num_heads": 4, "depth": 2, "depth_single_blocks": 3, "axes_dim": [4, 6, 6],
    "theta": 10000, "patch_size": 2, "qkv_bias": True, "guidance_embed": True, "txt_ids_dims": [],
}  # fmt: skip
FLUX2 = FLUX | {
    "in_channels": 32, "out_channels": 32, "vec_in_dim": None, "patch_size": 1, "axes_dim": [4, 4, 4, 4],
    "theta": 2000, "qkv_bias": False, "txt_ids_dims": [3], "global_modulation": True, "mlp_silu_act": True,
    "ops_bias": False, "default_ref_method": "index", "ref_index_scale": 10.0,
}  # fmt: skip
LONGCAT = FLUX | {"vec_in_dim": None, "guidance_embed": False, "txt_ids_dims": [1, 2], "txt_norm": True}
CHROMA = {
    "image_model": "chroma", "in_channels": 64, "out_channels": 64, "context_in_dim": 64, "hidden_size": 64,
    "mlp_ratio": 4.0, "num_heads": 4, "depth": 2, "depth_single_blocks": 3, "axes_dim": [4, 6, 6], "theta": 10000,
    "patch_size": 2, "qkv_bias": True, "in_dim": 64, "out_dim": 64, "hidden_dim": 32, "n_layers": 1,
    "txt_ids_dims": [], "vec_in_dim": None,
}  # fmt: skip
RADIANCE = CHROMA | {
    "in_channels": 3, "out_channels": 3, "patch_size": 16, "nerf_hidden_size": 16, "nerf_mlp_ratio": 4,
    "nerf_depth": 1, "nerf_max_freqs": 8, "nerf_tile_size": 512, "nerf_final_head_type": "conv",
    "nerf_embedder_dtype": torch.float32, "use_x0": False, "use_sequential_txt_ids": False,
}  # fmt: skip
FLUX_TEXT = {"y": rows(32), "guidance": guidance}


def louder_image(attention: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """A node's patch of what attention gives the image's tokens, as normalized attention guidance has one."""
    start, stop = options["img_slice"]
    attention = attention.clone()
    attention[:, start:stop] *= 1.5
    return attention


def flux(**more: Callable[..., Any]) -> HostCase:
    return HostCase("comfy.ldm.flux.model.Flux", FLUX, with_(image(16), text(64, **FLUX_TEXT, **more)))


CASES: dict[str, HostCase] = {
    "flux-dev": flux(),
    "flux-kontext": flux(ref_latents=lambda random: [random(BATCH, 16, 10, 12)]),
    "flux-controlnet": flux(
        control=lambda random: {"input": [random(BATCH, 77, 64), None], "output": [random(BATCH, 77, 64)]}
    ),
    "flux-attention-patch": flux(
        transformer_options=lambda _random: {"patches": {"attn1_output_patch": [louder_image]}}
    ),
    "flux2": HostCase("comfy.ldm.flux.model.Flux", FLUX2, with_(image(32, 7, 11), text(64, guidance=guidance))),
    "flux2-edit-index-timestep-zero": HostCase(
        "comfy.ldm.flux.model.Flux",
        FLUX2,
        with_(
            image(32, 7, 11),
            text(
                64,
                ref_latents=lambda random: [random(BATCH, 32, 5, 6)],
                ref_latents_method=always("index_timestep_zero"),
            ),
        ),
    ),
    "longcat": HostCase("comfy.ldm.flux.model.Flux", LONGCAT, with_(image(16), text(64))),
    "chroma": HostCase("comfy.ldm.chroma.model.Chroma", CHROMA, with_(image(16), text(64, guidance=guidance))),
    "chroma-radiance": HostCase(
        "comfy.ldm.chroma_radiance.model.ChromaRadiance",
        RADIANCE,
        with_(image(3, 80, 112), text(64, guidance=guidance)),
    ),
}
