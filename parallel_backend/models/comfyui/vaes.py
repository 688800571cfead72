"""ComfyUI's VAE classes that can be split over ranks, and the modules of each."""

from collections.abc import Mapping
from typing import Any

from ..bands import TORCH, VAES, VaeClass


def register_vae(module: str, name: str, *others: Mapping[str, tuple[str, ...]], **fields: Any) -> None:
    """Adds a class. others: its modules, beside the usual ones."""
    modules = {path: names for each in (COMMON, *others) for path, names in each.items()}
    VAES[f"{module}.{name}"] = VaeClass(modules, attend="optimized_attention", chunks="comfy_has_chunked_io", **fields)


COMMON = {
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
HUNYUAN = {
    "comfy.ldm.hunyuan_video.vae": ("Encoder", "Decoder", "PixelShuffle2D", "PixelUnshuffle2D"),
    "comfy.ldm.hunyuan_video.vae_refiner": ("Encoder", "Decoder", "DnSmpl", "UpSmpl", "RMS_norm"),
}
# SD, SDXL, SD3, Flux, Flux.2, and HunyuanVideo's.
register_vae("comfy.ldm.models.autoencoder", "AutoencoderKL", STABLE_DIFFUSION)
# The same without quant_conv; also HunyuanVideo 1.5 and HunyuanImage.
register_vae("comfy.ldm.models.autoencoder", "AutoencodingEngine", STABLE_DIFFUSION, HUNYUAN)

USUAL = ("AttentionBlock", "CausalConv3d", "Decoder3d", "Encoder3d", "RMS_norm", "Resample", "ResidualBlock", "WanVAE")
MORE = ("AvgDown3D", "DupUp3D", "Down_ResidualBlock", "Up_ResidualBlock")
WAN = {"comfy.ldm.wan.vae": USUAL}
register_vae("comfy.ldm.wan.vae", "WanVAE", WAN)  # Wan 2.1 and Qwen-Image
register_vae("comfy.ldm.wan.vae2_2", "WanVAE", WAN, {"comfy.ldm.wan.vae2_2": (*USUAL, *MORE)})

LTX = {
    "comfy.ldm.lightricks.model": ("PixArtAlphaCombinedTimestepSizeEmbeddings", "TimestepEmbedding", "Timesteps"),
    "comfy.ldm.lightricks.vae.causal_conv3d": ("CausalConv3d",),
    "comfy.ldm.lightricks.vae.pixel_norm": ("PixelNorm",),
    "comfy.ldm.lightricks.vae.causal_video_autoencoder": (
        *("VideoVAE", "Encoder", "Decoder", "ResnetBlock3D", "UNetMidBlock3D", "LayerNorm", "processor"),
        *("DepthToSpaceUpsample", "SpaceToDepthDownsample"),
    ),
}
register_vae("comfy.ldm.lightricks.vae.causal_video_autoencoder", "VideoVAE", LTX, whole_sizes=True, draws_noise=True)

COSMOS = {
    "comfy.ldm.cosmos.vae": ("CausalContinuousVideoTokenizer", "IdentityDistribution"),
    "comfy.ldm.cosmos.cosmos_tokenizer.utils": ("CausalNormalize",),
    "comfy.ldm.cosmos.cosmos_tokenizer.patching": ("Patcher3D", "UnPatcher3D"),
    "comfy.ldm.cosmos.cosmos_tokenizer.layers3d": (
        *("EncoderFactorized", "DecoderFactorized", "CausalAttnBlock", "CausalTemporalAttnBlock"),
        *("CausalConv3d", "CausalHybridDownsample3d", "CausalHybridUpsample3d"),
        "CausalResnetBlockFactorized3d",
    ),
}
register_vae("comfy.ldm.cosmos.vae", "CausalContinuousVideoTokenizer", COSMOS)

# It attends only over time.
MOCHI = {
    "comfy.ldm.genmo.vae.model": (
        *("VideoVAE", "Encoder", "Decoder", "ResBlock", "DownsampleBlock", "CausalUpsampleBlock", "PConv3d"),
        *("Conv1x1", "GroupNormSpatial", "AttentionBlock", "Attention", "DepthToSpaceTime", "FourierFeatures"),
    ),
}
register_vae("comfy.ldm.genmo.vae.model", "VideoVAE", MOCHI, attends_over_rows=False)

# Its decoder is a transformer, whose tokens attend to all tokens of a tile.
register_vae("comfy.ldm.minimax.vae", "MiniMaxH3VideoVAE", tiles=True)
