"""Lists ComfyUI's VAE classes that can be split over ranks, and the modules of each.

An unlisted class or module is refused: it may read rows outside of its band in a way that no handler of `seams/bands`
knows. Tests compare every class with its run in one process (`tests/engine/vae/`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import RequestError
from ..models.bands import TORCH


@dataclass(frozen=True)
class VaeClass:
    """A VAE class that can be split.

    modules: the classes of its modules, by the Python module that defines them. attends_over_rows, whole_sizes,
    by_size, causal_frames: see `BandFunctions`. draws_noise: the ranks need the same random state. least_rows: of a
    latent, that each rank needs for the convolutions over them. replaced: by class of module and method, the function
    that replaces it; it gets the module and the bands before the arguments. tiles: whether the class itself cuts its
    input into tiles; then ranks share these instead of rows (`SharedTiles`), and any module may be in it.
    """

    modules: Mapping[str, tuple[str, ...]]
    attends_over_rows: bool = True
    whole_sizes: bool = False
    by_size: bool = False
    causal_frames: bool = False
    draws_noise: bool = False
    least_rows: int = 1
    tiles: bool = False
    replaced: Mapping[str, Mapping[str, Callable[..., Any]]] = field(default_factory=dict)


COMFYUI = {
    **TORCH,
    "comfy.ops": tuple(
        f"disable_weight_init.{name}" for name in ("Conv2d", "Conv3d", "GroupNorm", "LayerNorm", "Linear")
    ),
}
STABLE_DIFFUSION = {
    "comfy.ldm.modules.diffusionmodules.model": (
        *("Encoder", "Decoder", "ResnetBlock", "AttnBlock", "Downsample", "Upsample"),
        *("CarriedConv3d", "VideoConv3d"),
    ),
    "comfy.ldm.models.autoencoder": (
        *("AutoencoderKL", "AutoencodingEngine", "DiagonalGaussianRegularizer", "EmptyRegularizer"),
    ),
}
WAN = ("AttentionBlock", "CausalConv3d", "Decoder3d", "Encoder3d", "RMS_norm", "Resample", "ResidualBlock", "WanVAE")
LTX = "comfy.ldm.lightricks"
COSMOS = "comfy.ldm.cosmos.cosmos_tokenizer"
CLASSES: Mapping[str, VaeClass] = {
    # SD, SDXL, SD3, Flux, Flux.2, and HunyuanVideo's.
    "comfy.ldm.models.autoencoder.AutoencoderKL": VaeClass({**COMFYUI, **STABLE_DIFFUSION}),
    # The same without quant_conv; also HunyuanVideo 1.5 and HunyuanImage.
    "comfy.ldm.models.autoencoder.AutoencodingEngine": VaeClass(
        {
            **COMFYUI,
            **STABLE_DIFFUSION,
            "comfy.ldm.hunyuan_video.vae": ("Encoder", "Decoder", "PixelShuffle2D", "PixelUnshuffle2D"),
            "comfy.ldm.hunyuan_video.vae_refiner": ("Encoder", "Decoder", "DnSmpl", "UpSmpl", "RMS_norm"),
        }
    ),
    # Wan 2.1 and Qwen-Image.
    "comfy.ldm.wan.vae.WanVAE": VaeClass({**COMFYUI, "comfy.ldm.wan.vae": WAN}),
    "comfy.ldm.wan.vae2_2.WanVAE": VaeClass(
        {
            **COMFYUI,
            "comfy.ldm.wan.vae": WAN,
            "comfy.ldm.wan.vae2_2": (*WAN, "AvgDown3D", "DupUp3D", "Down_ResidualBlock", "Up_ResidualBlock"),
        }
    ),
    "comfy.ldm.lightricks.vae.causal_video_autoencoder.VideoVAE": VaeClass(
        {
            **COMFYUI,
            f"{LTX}.model": ("PixArtAlphaCombinedTimestepSizeEmbeddings", "TimestepEmbedding", "Timesteps"),
            f"{LTX}.vae.causal_conv3d": ("CausalConv3d",),
            f"{LTX}.vae.pixel_norm": ("PixelNorm",),
            f"{LTX}.vae.causal_video_autoencoder": (
                *("VideoVAE", "Encoder", "Decoder", "ResnetBlock3D", "UNetMidBlock3D", "LayerNorm", "processor"),
                *("DepthToSpaceUpsample", "SpaceToDepthDownsample"),
            ),
        },
        whole_sizes=True,
        draws_noise=True,
    ),
    "comfy.ldm.cosmos.vae.CausalContinuousVideoTokenizer": VaeClass(
        {
            **COMFYUI,
            "comfy.ldm.cosmos.vae": ("CausalContinuousVideoTokenizer", "IdentityDistribution"),
            f"{COSMOS}.utils": ("CausalNormalize",),
            f"{COSMOS}.patching": ("Patcher3D", "UnPatcher3D"),
            f"{COSMOS}.layers3d": (
                *("EncoderFactorized", "DecoderFactorized", "CausalAttnBlock", "CausalTemporalAttnBlock"),
                *("CausalConv3d", "CausalHybridDownsample3d", "CausalHybridUpsample3d"),
                "CausalResnetBlockFactorized3d",
            ),
        }
    ),
    # Mochi's attends only over time.
    "comfy.ldm.genmo.vae.model.VideoVAE": VaeClass(
        {
            **COMFYUI,
            "comfy.ldm.genmo.vae.model": (
                *("VideoVAE", "Encoder", "Decoder", "ResBlock", "DownsampleBlock", "CausalUpsampleBlock", "PConv3d"),
                *("Conv1x1", "GroupNormSpatial", "AttentionBlock", "Attention", "DepthToSpaceTime", "FourierFeatures"),
            ),
        },
        attends_over_rows=False,
    ),
    # Its decoder is a transformer, whose tokens attend to all tokens of a tile.
    "comfy.ldm.minimax.vae.MiniMaxH3VideoVAE": VaeClass({}, tiles=True),
}


def class_of(vae: torch.nn.Module, classes: Mapping[str, VaeClass] = CLASSES, advice: str = "") -> VaeClass:
    """Returns the description of a VAE's class. Raises RequestError with the advice if it cannot be split, and names
    the unknown part."""
    kind = type(vae)
    found = classes.get(f"{kind.__module__}.{kind.__qualname__}")
    if found is None:
        raise RequestError(
            f"A VAE of the class {kind.__name__} ({kind.__module__}) cannot be split over ranks.", advice
        )
    for name, module in () if found.tiles else vae.named_modules():
        kind = type(module)
        if kind.__qualname__ not in found.modules.get(kind.__module__, ()):
            raise RequestError(
                f"The VAE's layer {name} is a {kind.__qualname__} of {kind.__module__}, and ParallelDiT does not know "
                "how to split that over ranks.",
                advice,
            )
    return found
