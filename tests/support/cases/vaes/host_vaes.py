"""Tiny VAEs of ComfyUI's own classes, with seeded random weights, and what is decoded and encoded with them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import torch

from parallel_backend.vae.parallel import VaeSizes
from tests.support.cases.vaes.vae_cases import filled
from tests.support.host.site import tiny_vaes

LARGE_ROWS = 16
AUTOENCODERS = "comfy.ldm.models.autoencoder"
STABLE = "comfy.ldm.modules.diffusionmodules.model"
REFINER, HUNYUAN = "comfy.ldm.hunyuan_video.vae_refiner", "comfy.ldm.hunyuan_video.vae"
# ComfyUI's norms have 32 groups.
LEVELS = {
    **{"double_z": True, "in_channels": 3, "out_ch": 3, "ch": 32, "ch_mult": [1, 1, 2, 2], "num_res_blocks": 1},
    **{"attn_resolutions": [], "resolution": 256},
}
LTX = {"dims": 3, "latent_channels": 128, "patch_size": 4, "norm_layer": "pixel_norm", "latent_log_var": "uniform"}
LTX_WIDTHS = {"encoder_base_channels": 8, "decoder_base_channels": 8}


@dataclass(frozen=True)
class HostVae:
    """build: see `made`. rows: of a latent, for two calls. frames, shots: of latents and of videos; none of images.
    cut: so many rows of pixels are cut off for one more call, after which no whole number of latent rows is left."""

    build: Callable[[], torch.nn.Module]
    sizes: VaeSizes
    frames: tuple[int, ...] = ()
    shots: tuple[int, ...] = ()
    rows: tuple[int, ...] = (5, 7)
    batch: int = 1
    cut: int = 0

    def made(self, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
        """The model with weights that keep values near 1. Only where ComfyUI can be imported."""
        return filled(self.build()).to(dtype)

    def calls(self) -> dict[str, tuple[str, torch.Tensor]]:
        """By name: decode or encode, and of what."""
        found = {}
        for rows, frames, shots in zip(self.rows, self.frames or (0, 0), self.shots or (0, 0), strict=True):
            found[f"decode {frames} frames of {rows} rows"] = "decode", self.latents(frames, rows, 3)
            found[f"encode {shots} frames of {rows} rows"] = "encode", self.pictures(shots, rows, 2)
        if self.cut:
            found["encode cut rows"] = "encode", self.pictures(min(self.shots), max(self.rows), 2)[..., : -self.cut, :]
        return found

    def large(self) -> dict[str, torch.Tensor]:
        """What is decoded and encoded to see how much memory that takes: rows that divide by 4."""
        frames, shots = (each[-1] if each else 0 for each in (self.frames, self.shots))
        return {"decode": self.latents(frames, LARGE_ROWS, 2), "encode": self.pictures(shots, LARGE_ROWS, 2)}

    def latents(self, frames: int, rows: int, columns: int) -> torch.Tensor:
        shape = (self.batch, self.sizes.latent_channels, *([frames] if frames else []), rows, columns)
        return torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def pictures(self, frames: int, rows: int, columns: int) -> torch.Tensor:
        scale, lead = self.sizes.scale, [frames] if frames else []
        shape = (self.batch, self.sizes.channels, *lead, rows * scale, columns * scale)
        return torch.rand(shape, generator=torch.Generator().manual_seed(2)) * 2 - 1


def stable(latent_channels: int, **more: Any) -> Callable[[], torch.nn.Module]:
    """AutoencoderKL, as files of SD, SDXL, SD3 and Flux have it, with quant_conv."""
    config = {**LEVELS, "z_channels": latent_channels, **more}
    return lambda: resolve_name(f"{AUTOENCODERS}.AutoencoderKL")(ddconfig=config, embed_dim=latent_channels)


def engine(coders: str, config: Mapping[str, Any], regularizer: str) -> Callable[[], torch.nn.Module]:
    return lambda: resolve_name(f"{AUTOENCODERS}.AutoencodingEngine")(
        regularizer_config={"target": f"{AUTOENCODERS}.{regularizer}"},
        encoder_config={"target": f"{coders}.Encoder", "params": config},
        decoder_config={"target": f"{coders}.Decoder", "params": config},
    )


def refined(levels: int, spatial: int, latent_channels: int, **more: Any) -> dict[str, Any]:
    return {
        **{"block_out_channels": [32] * levels, "in_channels": 3, "out_channels": 3, "num_res_blocks": 1},
        **{"ffactor_spatial": spatial, "ffactor_temporal": 4, "z_channels": latent_channels, **more},
        **{"downsample_match_channel": True, "upsample_match_channel": True},
    }


def wan(path: str, latent_channels: int, **more: Any) -> Callable[[], torch.nn.Module]:
    config = {"dim": 8, "z_dim": latent_channels, "num_res_blocks": 1, "temperal_downsample": [False, True, True]}
    return lambda: resolve_name(path)(**{**config, **more})


def ltx(**more: Any) -> Callable[[], torch.nn.Module]:
    video_vae = "comfy.ldm.lightricks.vae.causal_video_autoencoder.VideoVAE"
    return lambda: resolve_name(video_vae)(config={**LTX, **LTX_WIDTHS, **more})


def cosmos() -> torch.nn.Module:
    return resolve_name("comfy.ldm.cosmos.vae.CausalContinuousVideoTokenizer")(
        **{"z_channels": 16, "latent_channels": 16, "z_factor": 1, "resolution": 1024, "in_channels": 3},
        **{"out_channels": 3, "channels": 8, "channels_mult": [2, 4, 4], "num_res_blocks": 1, "attn_resolutions": [32]},
        **{"dropout": 0.0, "patch_size": 4, "num_groups": 1, "temporal_compression": 8, "spacial_compression": 8},
    )


def mochi() -> torch.nn.Module:
    """Its class has one size; the parts of it take others."""
    module = importlib.import_module("comfy.ldm.genmo.vae.model")
    vae = module.VideoVAE.__new__(module.VideoVAE)
    torch.nn.Module.__init__(vae)
    sizes = {"base_channels": 32, "num_res_blocks": [1, 1, 1, 1, 1], "latent_dim": 12, "padding_mode": "replicate"}
    vae.encoder = module.Encoder(
        **{"in_channels": 15, "channel_multipliers": [1, 2, 1, 2], "temporal_reductions": [1, 2, 3]},
        **{"spatial_reductions": [2, 2, 2], "prune_bottlenecks": [False] * 5, "input_is_conv_1x1": True},
        **{"has_attentions": [False, True, True, True, True], **sizes},
    )
    vae.decoder = module.Decoder(
        **{"out_channels": 3, "channel_multipliers": [1, 2, 1, 2], "temporal_expansions": [1, 2, 3]},
        **{"spatial_expansions": [2, 2, 2], "has_attention": [False] * 5, "output_norm": False, **sizes},
    )
    return vae


def minimax(path: str, shrink: Callable[[Any], None], name: str) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        module = importlib.import_module(path)
        with patch.dict(vars(module)):
            shrink(module)
            return getattr(module, name)()

    return build


BLOCKS = [["res_x", 1], ["compress_all", 1], ["res_x_y", 1], ["compress_all", 1], ["compress_all", 1], ["res_x", 1]]
NOISY = [
    *(["res_x", {"num_layers": 1, "inject_noise": True}], ["compress_all", {"residual": True, "multiplier": 2}]),
    *(["res_x", {"num_layers": 1, "inject_noise": True}], ["compress_all", {"residual": True, "multiplier": 2}]),
    *(["compress_all", {"residual": True, "multiplier": 2}], ["res_x", {"num_layers": 1}]),
]
BY_DEPTH = [
    ["res_x", {"num_layers": 1}],
    ["compress_space_res", {"multiplier": 2}],
    ["compress_time_res", {"multiplier": 2}],
    ["compress_all_res", {"multiplier": 2}],
    ["compress_all_res", {"multiplier": 2}],
    ["res_x", {"num_layers": 1}],
]

VAES: Mapping[str, HostVae] = {
    "sd": HostVae(stable(4), VaeSizes(8, 4, 3, 4), rows=(6, 9), batch=2),
    "flux": HostVae(
        engine(STABLE, {**LEVELS, "z_channels": 16}, "DiagonalGaussianRegularizer"), VaeSizes(8, 16, 3, 4), rows=(3, 7)
    ),
    "flux2": HostVae(stable(4, batch_norm_latent=True), VaeSizes(16, 16, 3, 4)),
    "hunyuan-image": HostVae(
        engine(HUNYUAN, refined(6, 32, 8), "DiagonalGaussianRegularizer"), VaeSizes(32, 8, 3, 4), rows=(4, 5)
    ),
    "hunyuan-video": HostVae(stable(4, conv3d=True, time_compress=4), VaeSizes(8, 4, 3, 5), (1, 4), (1, 14)),
    "hunyuan-video-1.5": HostVae(
        engine(REFINER, refined(5, 16, 8), "EmptyRegularizer"), VaeSizes(16, 8, 3, 5), (1, 3), (1, 10), (4, 5)
    ),
    "hunyuan-image-refiner": HostVae(
        engine(REFINER, refined(5, 16, 8, refiner_vae=False), "DiagonalGaussianRegularizer"),
        VaeSizes(16, 8, 3, 5),
        *((1, 2), (1, 4), (4, 5)),
    ),
    "wan-2.1": HostVae(wan("comfy.ldm.wan.vae.WanVAE", 16), VaeSizes(8, 16, 3, 5), (1, 4), (1, 11), batch=2),
    "wan-2.2": HostVae(
        wan("comfy.ldm.wan.vae2_2.WanVAE", 16, dec_dim=8), VaeSizes(16, 16, 3, 5), (1, 3), (1, 9), (4, 5)
    ),
    "ltx-0.9": HostVae(ltx(blocks=BLOCKS, causal_decoder=False), VaeSizes(32, 128, 3, 5), (1, 3), (1, 20), (4, 5)),
    "ltx-0.9.1": HostVae(
        ltx(encoder_blocks=BLOCKS, decoder_blocks=NOISY, timestep_conditioning=True),
        VaeSizes(32, 128, 3, 5),
        *((1, 3), (1, 17), (4, 5)),
    ),
    "ltx-0.9.5": HostVae(
        ltx(encoder_blocks=BY_DEPTH, decoder_blocks=NOISY, causal_decoder=True, spatial_padding_mode="zeros"),
        VaeSizes(32, 128, 3, 5),
        *((2, 3), (9, 17), (4, 5)),
    ),
    "cosmos": HostVae(cosmos, VaeSizes(8, 16, 3, 5), (1, 3), (1, 17)),
    "mochi": HostVae(mochi, VaeSizes(8, 12, 3, 5), (1, 3), (1, 13)),
    # A tile and a clip, two tiles and two clips: not as many as any number of ranks.
    "minimax-h3": HostVae(
        minimax(tiny_vaes.VIDEO, tiny_vaes.shrink_video, "MiniMaxH3VideoVAE"),
        VaeSizes(16, 24, 3, 5),
        *((1, 10), (1, 25), (4, 7)),
        cut=5,
    ),
}
SOUND = HostVae(minimax(tiny_vaes.AUDIO, tiny_vaes.shrink_audio, "MiniMaxH3AudioVAE"), VaeSizes(800, 32, 2, 4))
# One of each kind, of whose large case the memory is measured.
MEASURED = ("sd", "hunyuan-video", "wan-2.1", "ltx-0.9.5", "cosmos", "mochi")
# Of those that draw no noise.
WITHOUT_NOISE = tuple(name for name in VAES if name not in ("ltx-0.9.1", "ltx-0.9.5"))
