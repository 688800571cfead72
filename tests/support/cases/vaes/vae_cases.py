"""VAEs with seeded random weights, and what is decoded and encoded with them, for the tests and their ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file

Weights = dict[str, torch.Tensor]


def config(channels: tuple[int, ...], groups: int, layers: int = 1, latent_channels: int = 4) -> dict[str, Any]:
    """The configuration of an AutoencoderKL of the stock structure: levels of these widths."""
    return {
        "block_out_channels": list(channels),
        "down_block_types": ["DownEncoderBlock2D"] * len(channels),
        "up_block_types": ["UpDecoderBlock2D"] * len(channels),
        "norm_num_groups": groups,
        "layers_per_block": layers,
        "latent_channels": latent_channels,
    }


TINY = config((8, 16, 16, 16), groups=4)
NO_ATTENTION = {**TINY, "mid_block_add_attention": False}
NO_QUANT = {**TINY, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}


@dataclass(frozen=True)
class Case:
    """A VAE and a latent (batch, height, width) for it; an image is what the latent decodes to, `crop` pixels less."""

    config: dict[str, Any] = field(default_factory=lambda: TINY)
    shape: tuple[int, int, int] = (1, 8, 8)
    crop: int = 0
    dtype: torch.dtype = torch.float32

    def build(self) -> AutoencoderKL:
        """The model; its norms scale and shift, as trained ones do."""
        torch.manual_seed(0)
        vae = AutoencoderKL(**self.config)
        for module in vae.modules():
            if isinstance(module, torch.nn.GroupNorm):
                torch.nn.init.normal_(module.weight, 1, 0.3)
                torch.nn.init.normal_(module.bias, 0, 0.3)
        return (vae if self.dtype == torch.float32 else vae.to(self.dtype)).eval()

    def arguments(self) -> dict[str, Any]:
        """What `decode` takes beside the latents."""
        return {}

    def latents(self) -> torch.Tensor:
        batch, height, width = self.shape
        return torch.randn(batch, self.config["latent_channels"], height, width, generator=seeded(1))

    def image(self) -> torch.Tensor:
        batch, *sides = self.shape
        scale = 2 ** (len(self.config["block_out_channels"]) - 1)
        height, width = (scale * side - self.crop for side in sides)
        return torch.rand(batch, 3, height, width, generator=seeded(2)) * 2 - 1


CASES = {
    "square": Case(),
    "odd height, batch of 2": Case(shape=(2, 9, 6)),
    "wide, one row a rank": Case(shape=(1, 4, 11)),
    "more ranks than rows": Case(shape=(1, 3, 5)),
    "no attention": Case(NO_ATTENTION, (1, 7, 5)),
    "no quant conv": Case(NO_QUANT, (2, 6, 5)),
    "image of no multiple of 8": Case(shape=(1, 10, 7), crop=3),
}
BF16 = Case(shape=(2, 9, 6), dtype=torch.bfloat16)
LARGE = Case(config((16, 32, 32, 32), groups=8), (1, 128, 128))


def save_decoder(path: Path) -> Weights:
    """A file of a decoder alone, as small as ComfyUI knows one, by diffusers' names; its weights."""
    torch.manual_seed(0)
    weights = AutoencoderKL(**config((32, 64, 128, 128), groups=32, layers=2)).state_dict()
    weights = {name: tensor for name, tensor in weights.items() if name.startswith(("decoder.", "post_quant_conv."))}
    save_file(weights, path)
    return weights


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def norm_input() -> torch.Tensor:
    """(B, C, H, W) whose groups are far from zero, and in one row farther: where naive statistics go wrong."""
    values = torch.randn(2, 8, 9, 40, generator=seeded(3)) + 30
    values[:, :, 4] += 20
    return values


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference as a share of the largest value."""
    if result.shape != expected.shape:
        return math.inf
    return ((result.double() - expected.double()).abs().max() / expected.double().abs().max()).item()
