"""Lists diffusers' VAE classes that can be split over ranks."""

from __future__ import annotations

from collections.abc import Mapping

from ..models.bands import TORCH, VaeClass
from .replaced import attend_linearly, convolve_in_parts

MODELS = "diffusers.models"
AUTOENCODERS = f"{MODELS}.autoencoders"
ATTENTION = {f"{MODELS}.attention_processor": ("Attention",)}
# What the classes for images are made of.
IMAGE = {
    **TORCH,
    **ATTENTION,
    f"{AUTOENCODERS}.vae": ("Encoder", "Decoder"),
    f"{MODELS}.downsampling": ("Downsample2D",),
    f"{MODELS}.resnet": ("ResnetBlock2D",),
    f"{MODELS}.unets.unet_2d_blocks": ("DownEncoderBlock2D", "UNetMidBlock2D", "UpDecoderBlock2D"),
    f"{MODELS}.upsampling": ("Upsample2D",),
}
TIMESTEP = {
    f"{MODELS}.embeddings": ("PixArtAlphaCombinedTimestepSizeEmbeddings", "TimestepEmbedding", "Timesteps"),
}
CAUSAL = f"{AUTOENCODERS}.autoencoder_kl_cogvideox"
COGVIDEOX_CONVOLUTIONS = ("CogVideoXCausalConv3d", "CogVideoXSafeConv3d")
COGVIDEOX_PARTS = {"CogVideoXSafeConv3d": {"forward": convolve_in_parts}}


def named(prefix: str, *names: str) -> tuple[str, ...]:
    """Returns names of classes that begin alike."""
    return tuple(f"{prefix}{name}" for name in names)


def wan_like(file: str, prefix: str, vae: str, *more: str) -> VaeClass:
    """Returns the description of Wan's class, or of a copy of it."""
    usual = ("AttentionBlock", "CausalConv3d", "Decoder3d", "Encoder3d", "MidBlock", "RMS_norm", "Resample")
    usual += ("ResidualBlock", "UpBlock", "Upsample")
    return VaeClass({**TORCH, f"{AUTOENCODERS}.{file}": (vae, *named(prefix, *usual), *more)})


CLASSES: Mapping[str, VaeClass] = {
    f"{AUTOENCODERS}.autoencoder_kl.AutoencoderKL": VaeClass(
        {**IMAGE, f"{AUTOENCODERS}.autoencoder_kl": ("AutoencoderKL",)}
    ),
    f"{AUTOENCODERS}.autoencoder_kl_flux2.AutoencoderKLFlux2": VaeClass(
        {**IMAGE, f"{AUTOENCODERS}.autoencoder_kl_flux2": ("AutoencoderKLFlux2",)}
    ),
    f"{AUTOENCODERS}.autoencoder_dc.AutoencoderDC": VaeClass(
        {
            **TORCH,
            f"{MODELS}.attention_processor": named("SanaMultiscale", "AttentionProjection", "LinearAttention"),
            f"{MODELS}.normalization": ("RMSNorm",),
            f"{MODELS}.transformers.sana_transformer": ("GLUMBConv",),
            f"{AUTOENCODERS}.autoencoder_dc": (
                *("AutoencoderDC", "DCDownBlock2d", "DCUpBlock2d", "Decoder", "EfficientViTBlock", "Encoder"),
                "ResBlock",
            ),
        },
        least_rows=2,
        replaced={
            "SanaMultiscaleLinearAttention": {
                "apply_linear_attention": attend_linearly,
                "apply_quadratic_attention": attend_linearly,
            }
        },
    ),
    f"{CAUSAL}.AutoencoderKLCogVideoX": VaeClass(
        {
            **TORCH,
            CAUSAL: (
                "AutoencoderKLCogVideoX",
                *COGVIDEOX_CONVOLUTIONS,
                *named("CogVideoX", "Decoder3D", "DownBlock3D", "Encoder3D", "MidBlock3D", "ResnetBlock3D"),
                *named("CogVideoX", "SpatialNorm3D", "UpBlock3D"),
            ),
            f"{MODELS}.downsampling": ("CogVideoXDownsample3D",),
            f"{MODELS}.upsampling": ("CogVideoXUpsample3D",),
        },
        by_size=True,
        replaced=COGVIDEOX_PARTS,
    ),
    f"{AUTOENCODERS}.autoencoder_kl_wan.AutoencoderKLWan": wan_like(
        "autoencoder_kl_wan",
        "Wan",
        "AutoencoderKLWan",
        *("AvgDown3D", "DupUp3D", "WanResidualDownBlock", "WanResidualUpBlock"),
    ),
    f"{AUTOENCODERS}.autoencoder_kl_qwenimage.AutoencoderKLQwenImage": wan_like(
        "autoencoder_kl_qwenimage", "QwenImage", "AutoencoderKLQwenImage"
    ),
    f"{AUTOENCODERS}.autoencoder_kl_hunyuan_video.AutoencoderKLHunyuanVideo": VaeClass(
        {
            **TORCH,
            **ATTENTION,
            f"{AUTOENCODERS}.autoencoder_kl_hunyuan_video": (
                "AutoencoderKLHunyuanVideo",
                *named("HunyuanVideo", "CausalConv3d", "Decoder3D", "DownBlock3D", "DownsampleCausal3D", "Encoder3D"),
                *named("HunyuanVideo", "MidBlock3D", "ResnetBlockCausal3D", "UpBlock3D", "UpsampleCausal3D"),
            ),
        },
        causal_frames=True,
    ),
    f"{AUTOENCODERS}.autoencoder_kl_hunyuanvideo15.AutoencoderKLHunyuanVideo15": VaeClass(
        {
            **TORCH,
            f"{AUTOENCODERS}.autoencoder_kl_hunyuanvideo15": (
                "AutoencoderKLHunyuanVideo15",
                *named("HunyuanVideo15", "AttnBlock", "CausalConv3d", "Decoder3D", "DownBlock3D", "Downsample"),
                *named("HunyuanVideo15", "Encoder3D", "MidBlock", "RMS_norm", "ResnetBlock", "UpBlock3D", "Upsample"),
            ),
        },
        causal_frames=True,
    ),
    f"{AUTOENCODERS}.autoencoder_kl_magvit.AutoencoderKLMagvit": VaeClass(
        {
            **TORCH,
            f"{AUTOENCODERS}.autoencoder_kl_magvit": (
                "AutoencoderKLMagvit",
                *named("EasyAnimate", "CausalConv3d", "Decoder", "DownBlock3D", "Downsampler3D", "Encoder"),
                *named("EasyAnimate", "MidBlock3d", "ResidualBlock3D", "UpBlock3d", "Upsampler3D"),
            ),
        }
    ),
    f"{AUTOENCODERS}.autoencoder_kl_temporal_decoder.AutoencoderKLTemporalDecoder": VaeClass(
        {
            **IMAGE,
            f"{AUTOENCODERS}.autoencoder_kl_temporal_decoder": ("AutoencoderKLTemporalDecoder", "TemporalDecoder"),
            f"{MODELS}.resnet": ("AlphaBlender", "ResnetBlock2D", "SpatioTemporalResBlock", "TemporalResnetBlock"),
            f"{MODELS}.unets.unet_3d_blocks": ("MidBlockTemporalDecoder", "UpBlockTemporalDecoder"),
        }
    ),
    f"{AUTOENCODERS}.autoencoder_kl_ltx2.AutoencoderKLLTX2Video": VaeClass(
        {
            **TORCH,
            **TIMESTEP,
            f"{AUTOENCODERS}.autoencoder_kl_ltx2": (
                "AutoencoderKLLTX2Video",
                "PerChannelRMSNorm",
                *named("LTX2Video", "CausalConv3d", "Decoder3d", "DownBlock3D", "Downsampler3d", "Encoder3d"),
                *named("LTX2Video", "MidBlock3d", "ResnetBlock3d", "UpBlock3d", "Upsampler3d"),
            ),
        },
        draws_noise=True,
    ),
    f"{AUTOENCODERS}.autoencoder_kl_ltx.AutoencoderKLLTXVideo": VaeClass(
        {
            **TORCH,
            **TIMESTEP,
            f"{MODELS}.normalization": ("RMSNorm",),
            f"{AUTOENCODERS}.autoencoder_kl_ltx": (
                "AutoencoderKLLTXVideo",
                *named("LTXVideo", "095DownBlock3D", "CausalConv3d", "Decoder3d", "DownBlock3D", "Downsampler3d"),
                *named("LTXVideo", "Encoder3d", "MidBlock3d", "ResnetBlock3d", "UpBlock3d", "Upsampler3d"),
            ),
        },
        draws_noise=True,
    ),
    # It attends only over time.
    f"{AUTOENCODERS}.autoencoder_kl_mochi.AutoencoderKLMochi": VaeClass(
        {
            **TORCH,
            **ATTENTION,
            CAUSAL: COGVIDEOX_CONVOLUTIONS,
            f"{MODELS}.normalization": ("LpNorm", "RMSNorm"),
            f"{AUTOENCODERS}.autoencoder_kl_mochi": (
                *("AutoencoderKLMochi", "FourierFeatures"),
                *named("Mochi", "ChunkedGroupNorm3D", "Decoder3D", "DownBlock3D", "Encoder3D", "MidBlock3D"),
                *named("Mochi", "ResnetBlock3D", "UpBlock3D"),
            ),
        },
        attends_over_rows=False,
        replaced=COGVIDEOX_PARTS,
    ),
}
