"""`python -m tests.support.files.published_vaes COMFYUI`:
of every VAE that is split over ranks, at its published size and without numbers: what ComfyUI makes of its weights, as
they are sent to the ranks. As JSON, by name: whether it is the same VAE, and what its object tells of sizes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from parallel_backend.vae.classes import class_of
from tests.support.cases.vaes.host_vaes import HUNYUAN, REFINER, STABLE, class_at, engine, refined, stable
from tests.support.host.mounted import import_comfyui
from worker.comfyui.vae import HostVae, build_vae, metadata_of, structure_of, weights_of

META = torch.device("meta")
WIDE = {"ch": 128, "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2}
KL, NONE = "DiagonalGaussianRegularizer", "EmptyRegularizer"
HUNYUAN_15 = {"block_out_channels": [128, 256, 512, 1024, 1024], "num_res_blocks": 2}
WAN = {"num_res_blocks": 2, "temperal_downsample": [False, True, True]}
COSMOS = {
    **{"z_channels": 16, "latent_channels": 16, "z_factor": 1, "resolution": 1024, "in_channels": 3, "out_channels": 3},
    **{"channels": 128, "channels_mult": [2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [32], "dropout": 0.0},
    **{"patch_size": 4, "num_groups": 1, "temporal_compression": 8, "spacial_compression": 8},
}


def plain(path: str, **config: Any) -> Callable[[], torch.nn.Module]:
    return lambda: class_at(path)(**config)


LTX = "comfy.ldm.lightricks.vae.causal_video_autoencoder.VideoVAE"
PUBLISHED: Mapping[str, Callable[[], torch.nn.Module]] = {
    "sd": stable(4, **WIDE),
    "flux": engine(
        STABLE,
        {
            **WIDE,
            "z_channels": 16,
            "double_z": True,
            "in_channels": 3,
            "out_ch": 3,
            "attn_resolutions": [],
            "resolution": 256,
        },
        KL,
    ),
    "flux2": stable(32, **WIDE, batch_norm_latent=True),
    "hunyuan-video": stable(16, **WIDE, conv3d=True, time_compress=4),
    "hunyuan-video-1.5": engine(REFINER, {**refined(5, 16, 32), **HUNYUAN_15}, NONE),
    "hunyuan-image-refiner": engine(REFINER, {**refined(5, 16, 32, refiner_vae=False), **HUNYUAN_15}, KL),
    "hunyuan-image": engine(
        HUNYUAN, {**refined(6, 32, 64), "block_out_channels": [128, 256, 512, 512, 1024, 1024], "num_res_blocks": 2}, KL
    ),
    "wan-2.1": plain("comfy.ldm.wan.vae.WanVAE", dim=96, z_dim=16, **WAN),
    "wan-2.2": plain("comfy.ldm.wan.vae2_2.WanVAE", dim=160, z_dim=48, **WAN),
    **{f"ltx {version}": plain(LTX, version=version) for version in (0, 1, 2)},
    "cosmos": plain("comfy.ldm.cosmos.vae.CausalContinuousVideoTokenizer", **COSMOS),
    "mochi": plain("comfy.ldm.genmo.vae.model.VideoVAE"),
    "minimax-h3": plain("comfy.ldm.minimax.vae.MiniMaxH3VideoVAE"),
}


def without_numbers(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    try:
        with META:
            return build().eval()
    except RuntimeError:  # Cosmos' computes from a tensor as it is made
        return build().to(META).eval()


def made_again(module: torch.nn.Module) -> HostVae:
    weights, metadata = weights_of(module), metadata_of(module)
    try:
        with META:
            return build_vae(weights, metadata, torch.float32, None)
    except RuntimeError:
        numbers = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in weights.items()}
        return build_vae(numbers, metadata, torch.float32, None)


def main(comfyui: str) -> None:
    import_comfyui(comfyui)
    found = {}
    for name, build in PUBLISHED.items():
        module = without_numbers(build)
        class_of(module)  # raises for a layer that is not known
        again = made_again(module)
        found[name] = {
            "alike": structure_of(again.module) == structure_of(module),
            "missing": again.missing,
            "sizes": [again.scale, again.vae.latent_channels, again.vae.output_channels, again.vae.latent_dim + 2],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
