"""VAEs with seeded random weights, and what is decoded and encoded with them, for the tests and their ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
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
class DiffusersVae:
    """config: of the class. scale: how many pixels wide a latent pixel is. rows, columns: of latents; crop: so many
    pixels less an image has on each side. frames, shots: of latents and of videos; none of images. temb, num_frames:
    that `decode` takes."""

    model_class: str
    config: Mapping[str, Any]
    latent_channels: int
    scale: int
    rows: int = 6
    columns: int = 3
    crop: int = 0
    frames: int = 0
    shots: int = 0
    batch: int = 1
    channels: int = 3
    temb: float | None = None
    num_frames: int | None = None
    dtype: torch.dtype = torch.float32

    def build(self) -> Any:
        """The model, with weights of `filled`."""
        return filled(getattr(diffusers, self.model_class)(**self.config)).to(self.dtype)

    def latents(self) -> torch.Tensor:
        return self.draw(1, self.latent_channels, self.frames, self.rows, self.columns)

    def pictures(self) -> torch.Tensor:
        """Pixels of -1 to 1."""
        sides = (side * self.scale - self.crop for side in (self.rows, self.columns))
        return self.draw(2, self.channels, self.shots, *sides).clamp(-2, 2) / 2

    def arguments(self) -> dict[str, Any]:
        """What `decode` takes beside the latents."""
        timestep = {} if self.temb is None else {"temb": torch.full((self.batch,), self.temb)}
        return timestep if self.num_frames is None else {"num_frames": self.num_frames}

    def draw(self, seed: int, channels: int, frames: int, *sides: int) -> torch.Tensor:
        shape = (self.batch, channels, *([frames] if frames else []), *sides)
        return torch.randn(shape, generator=seeded(seed)).to(self.dtype)


def filled(model: torch.nn.Module) -> torch.nn.Module:
    """The model with seeded weights that keep values near 1; norms scale and shift, as trained ones do."""
    generator = seeded(0)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if weight.is_floating_point():
                random = torch.randn(weight.shape, generator=generator)
                is_scale = name.endswith(("gamma", "std-of-means", "running_var", "latent_std", "latents_std"))
                if weight.ndim < 2 or is_scale:
                    by_one = is_scale or ("norm" in name and name.endswith("weight")) or "residual" in name
                    weight.copy_(by_one + 0.2 * random.clamp(-2, 2))
                elif "per_channel_scale" in name:
                    weight.copy_(0.3 * random)
                else:
                    weight.copy_(random / weight[0].numel() ** 0.5)
    return model.eval().requires_grad_(False)


def stock(rows: int = 8, columns: int = 8, config: dict[str, Any] = TINY, **more: Any) -> DiffusersVae:
    """Of the stock structure, with four levels."""
    return DiffusersVae("AutoencoderKL", config, config["latent_channels"], 8, rows, columns, **more)


CASES = {
    "square": stock(),
    "odd height, batch of 2": stock(9, 6, batch=2),
    "wide, one row a rank": stock(4, 11),
    "more ranks than rows": stock(3, 5),
    "no attention": stock(7, 5, NO_ATTENTION),
    "no quant conv": stock(6, 5, NO_QUANT, batch=2),
    "image of no multiple of 8": stock(10, 7, crop=3),
}
BF16 = stock(9, 6, batch=2, dtype=torch.bfloat16)


def save_decoder(path: Path) -> Weights:
    """A file of a decoder alone, as small as ComfyUI knows one, by diffusers' names; its weights."""
    torch.manual_seed(0)
    weights = diffusers.AutoencoderKL(**config((32, 64, 128, 128), groups=32, layers=2)).state_dict()
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
