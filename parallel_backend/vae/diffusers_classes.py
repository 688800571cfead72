"""Lists diffusers' VAE classes that can be split over ranks, with functions in place of those of their methods that
look at the size of their input, or sum over all rows.

Shapes: B batch, H heads, D head dim, N this rank's pixels; C channels, T frames.
"""

from __future__ import annotations

from typing import Any

import torch

from ..groups.collectives import gather
from ..models.bands import TORCH, VaeClass
from ..seams.bands.rows import RowBands

MODELS = "diffusers.models"
CLASSES: dict[str, VaeClass] = {}
LARGEST = 1 << 30  # numbers of a convolution's input; diffusers' own limit


def attend_linearly(
    layer: Any, bands: RowBands, query_BHDN: torch.Tensor, key_BHDN: torch.Tensor, value_BHDN: torch.Tensor
) -> torch.Tensor:
    """Linear attention of `SanaMultiscaleLinearAttention` to all ranks' pixels: their sums over pixels are added up.

    The class has a quadratic form for few pixels. It gives the same but for rounding, and ranks of different heights
    might choose differently. So this replaces both.
    """
    key, value = key_BHDN.float(), value_BHDN.float()
    sums = torch.cat((value @ key.mT, key.sum(-1).unsqueeze(-2)), -2)
    if bands.rows:
        sums = gather(sums.unsqueeze(0), 0, bands.axis.degree, bands.axis.evenly).sum(0)
    attended = sums @ query_BHDN.float()
    return (attended[..., :-1, :] / (attended[..., -1:, :] + layer.eps)).to(value_BHDN.dtype)


def convolve_in_parts(layer: torch.nn.Conv3d, bands: RowBands, band_BCTHW: torch.Tensor) -> torch.Tensor:
    """The convolution of `CogVideoXSafeConv3d`, which splits long videos by their size. All ranks split alike here, by
    the largest band, because each part exchanges border rows."""
    largest = band_BCTHW.numel() * max(bands.sizes) // bands.local_rows if bands.rows else band_BCTHW.numel()
    sees, step = layer.kernel_size[0], layer.stride[0]
    frames = range((band_BCTHW.shape[2] - sees) // step + 1)  # of the result
    most = -(-len(frames) // (largest // LARGEST + 1))
    parts = []
    for start in frames[::most]:
        count = len(frames[start : start + most])
        part = band_BCTHW.narrow(2, start * step, (count - 1) * step + sees)
        parts.append(torch.nn.Conv3d.forward(layer, part))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def add(name: str, *parts: str, others: dict[str, tuple[str, ...]] | None = None, **traits: Any) -> None:
    """Adds a class. name: with that of its file. parts: its modules that are in the same file. others: those of other
    files, beside torch's. traits: see VaeClass."""
    file, _, own = name.partition(".")
    path = f"autoencoders.{file}"
    modules = {f"{MODELS}.{each}": names for each, names in {**(others or {}), path: (own, *parts)}.items()}
    CLASSES[f"{MODELS}.{path}.{own}"] = VaeClass({**TORCH, **modules}, **traits)


def named(prefix: str, *names: str) -> tuple[str, ...]:
    """Returns names of classes that begin alike."""
    return tuple(f"{prefix}{name}" for name in names)


ATTENTION = {"attention_processor": ("Attention",)}
# What the classes for images are made of.
IMAGE = {
    **ATTENTION,
    "autoencoders.vae": ("Encoder", "Decoder"),
    "downsampling": ("Downsample2D",),
    "resnet": ("ResnetBlock2D",),
    "unets.unet_2d_blocks": ("DownEncoderBlock2D", "UNetMidBlock2D", "UpDecoderBlock2D"),
    "upsampling": ("Upsample2D",),
}
add("autoencoder_kl.AutoencoderKL", others=IMAGE)
add("autoencoder_kl_flux2.AutoencoderKLFlux2", others=IMAGE)
add(
    "autoencoder_kl_temporal_decoder.AutoencoderKLTemporalDecoder",
    "TemporalDecoder",
    others={
        **IMAGE,
        "resnet": ("AlphaBlender", "ResnetBlock2D", "SpatioTemporalResBlock", "TemporalResnetBlock"),
        "unets.unet_3d_blocks": ("MidBlockTemporalDecoder", "UpBlockTemporalDecoder"),
    },
)
add(
    "autoencoder_dc.AutoencoderDC",
    *("DCDownBlock2d", "DCUpBlock2d", "Decoder", "EfficientViTBlock", "Encoder", "ResBlock"),
    others={
        "attention_processor": named("SanaMultiscale", "AttentionProjection", "LinearAttention"),
        "normalization": ("RMSNorm",),
        "transformers.sana_transformer": ("GLUMBConv",),
    },
    least_rows=2,
    replaced={
        "SanaMultiscaleLinearAttention": {
            "apply_linear_attention": attend_linearly,
            "apply_quadratic_attention": attend_linearly,
        }
    },
)

CONVOLUTIONS = named("CogVideoX", "CausalConv3d", "SafeConv3d")
IN_PARTS = {"CogVideoXSafeConv3d": {"forward": convolve_in_parts}}
add(
    "autoencoder_kl_cogvideox.AutoencoderKLCogVideoX",
    *CONVOLUTIONS,
    *named("CogVideoX", "Decoder3D", "DownBlock3D", "Encoder3D", "MidBlock3D", "ResnetBlock3D"),
    *named("CogVideoX", "SpatialNorm3D", "UpBlock3D"),
    others={"downsampling": ("CogVideoXDownsample3D",), "upsampling": ("CogVideoXUpsample3D",)},
    by_size=True,
    replaced=IN_PARTS,
)
# It attends only over time.
add(
    "autoencoder_kl_mochi.AutoencoderKLMochi",
    "FourierFeatures",
    *named("Mochi", "ChunkedGroupNorm3D", "Decoder3D", "DownBlock3D", "Encoder3D", "MidBlock3D", "ResnetBlock3D"),
    "MochiUpBlock3D",
    others={
        **ATTENTION,
        "autoencoders.autoencoder_kl_cogvideox": CONVOLUTIONS,
        "normalization": ("LpNorm", "RMSNorm"),
    },
    attends_over_rows=False,
    replaced=IN_PARTS,
)

WAN = ("AttentionBlock", "CausalConv3d", "Decoder3d", "Encoder3d", "MidBlock", "RMS_norm", "Resample", "ResidualBlock")
WAN = (*WAN, "UpBlock", "Upsample")
add(
    "autoencoder_kl_wan.AutoencoderKLWan",
    *named("Wan", *WAN, "ResidualDownBlock", "ResidualUpBlock"),
    *("AvgDown3D", "DupUp3D"),
)
add("autoencoder_kl_qwenimage.AutoencoderKLQwenImage", *named("QwenImage", *WAN))
add(
    "autoencoder_kl_hunyuan_video.AutoencoderKLHunyuanVideo",
    *named("HunyuanVideo", "CausalConv3d", "Decoder3D", "DownBlock3D", "DownsampleCausal3D", "Encoder3D"),
    *named("HunyuanVideo", "MidBlock3D", "ResnetBlockCausal3D", "UpBlock3D", "UpsampleCausal3D"),
    others=ATTENTION,
    causal_frames=True,
)
add(
    "autoencoder_kl_hunyuanvideo15.AutoencoderKLHunyuanVideo15",
    *named("HunyuanVideo15", "AttnBlock", "CausalConv3d", "Decoder3D", "DownBlock3D", "Downsample"),
    *named("HunyuanVideo15", "Encoder3D", "MidBlock", "RMS_norm", "ResnetBlock", "UpBlock3D", "Upsample"),
    causal_frames=True,
)
add(
    "autoencoder_kl_magvit.AutoencoderKLMagvit",
    *named("EasyAnimate", "CausalConv3d", "Decoder", "DownBlock3D", "Downsampler3D", "Encoder"),
    *named("EasyAnimate", "MidBlock3d", "ResidualBlock3D", "UpBlock3d", "Upsampler3D"),
)

TIMESTEP = {"embeddings": ("PixArtAlphaCombinedTimestepSizeEmbeddings", "TimestepEmbedding", "Timesteps")}
LTX = ("CausalConv3d", "Decoder3d", "DownBlock3D", "Downsampler3d", "Encoder3d", "MidBlock3d", "ResnetBlock3d")
LTX = (*LTX, "UpBlock3d", "Upsampler3d")
add(
    "autoencoder_kl_ltx2.AutoencoderKLLTX2Video",
    "PerChannelRMSNorm",
    *named("LTX2Video", *LTX),
    others=TIMESTEP,
    draws_noise=True,
)
add(
    "autoencoder_kl_ltx.AutoencoderKLLTXVideo",
    *named("LTXVideo", *LTX, "095DownBlock3D"),
    others={**TIMESTEP, "normalization": ("RMSNorm",)},
    draws_noise=True,
)
