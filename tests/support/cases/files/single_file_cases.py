"""Tiny models as single files in every way they are published, what a rank must read from them, and files to refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.support.cases.families import FAMILIES, Family
from tests.support.host.stock_prompts import write_cases

Weights = dict[str, torch.Tensor]
PREFIX = "model.diffusion_model."
FP8 = torch.float8_e4m3fn


def sd3(name: str, **config: object) -> Family:
    sizes = {"num_attention_heads": 2, "num_layers": 2, "attention_head_dim": 64, "caption_projection_dim": 128}
    return FAMILIES[name].of_config(in_channels=16, out_channels=16, **sizes, **config)


def flux(name: str) -> Family:
    sizes = {"num_attention_heads": 2, "attention_head_dim": 128, "axes_dims_rope": (16, 56, 56)}
    return FAMILIES[name].of_config(in_channels=64, num_layers=1, num_single_layers=2, **sizes)


# Cases of `stock_cases`, and their sizes in diffusers' classes.
PUBLISHED = {
    "sd3": sd3("sd3"),
    "sd3.5": sd3("sd3.5", dual_attention_layers=(0,)),
    "flux-dev": flux("flux-dev"),
    "flux-schnell": flux("flux-schnell"),
}


@cache
def diffusers_weights(name: str) -> Weights:
    return PUBLISHED[name].build().state_dict()


@dataclass(frozen=True)
class Originals:
    """The cases' files in a base folder."""

    base: Path

    @classmethod
    def written(cls, comfyui: Path, base: Path) -> Originals:
        write_cases(comfyui, base, PUBLISHED)
        return cls(base)

    def __getitem__(self, name: str) -> Weights:
        return load_file(self.base / "models" / "diffusion_models" / f"{name}.safetensors")


def in_checkpoint(weights: Weights) -> Weights:
    """Beside another model, as a full checkpoint has it."""
    return {"vae.decoder.conv_in.weight": torch.zeros(1), **{PREFIX + key: value for key, value in weights.items()}}


def scaled_fp8(weights: Weights) -> Weights:
    """Matrices in fp8, each with a scale of its own beside it."""
    scaled = dict(weights)
    for index, key in enumerate(key for key, value in weights.items() if value.ndim == 2):
        scale = (index + 1) / 16
        scaled[key] = (weights[key] / scale).to(FP8)
        scaled[f"{key.removesuffix('weight')}weight_scale"] = torch.tensor(scale)
    return scaled


FILES: dict[str, Callable[[str, Weights], Weights]] = {
    "checkpoint": lambda _name, original: in_checkpoint(original),
    "diffusers": lambda name, _original: diffusers_weights(name),
    "scaled fp8, checkpoint": lambda _name, original: in_checkpoint(scaled_fp8(original)),
}


REFUSED = {
    "GenmoMochi": ("as its AsymmDiTJoint", "weights do not fit: size mismatch", ". And 1 more.\n\nDownload"),
    "Ovis": ("as its Flux", "weights do not fit"),
    "ControlNet": ("a ControlNet",),
    "half a Flux": ("is not a diffusion model that ComfyUI knows",),
    "an SD3 without a head": ("weights of ComfyUI's OpenAISignatureMMDITWrapper. The first", "incomplete"),
    "something": ("is not a diffusion model that ComfyUI knows", "text encoders and VAEs"),
}


def refused(kind: str, originals: Originals) -> Weights:
    """A file that looks like a supported model, or nearly."""
    dev, diffusers, sd3 = originals["flux-dev"], diffusers_weights("flux-dev"), originals["sd3"]
    without = {
        "an SD3 without a head": (sd3, "final_layer.linear.bias"),
        "half a Flux": (diffusers, "x_embedder.bias"),
        "something": (dev, ""),
    }
    if kind in without:
        weights, start = without[kind]
        return {"weight": torch.zeros(3)} | {key: held for key, held in weights.items() if not key.startswith(start)}
    base, name, tensor = {
        "GenmoMochi": ({"t5_yproj.bias": torch.zeros(1)}, "t5_yproj.weight", torch.zeros(1)),
        "Ovis": (dev, "txt_norm.scale", torch.zeros(1)),
        "ControlNet": (diffusers, "controlnet_blocks.0.weight", torch.zeros(1)),
    }[kind]
    return {**base, name: tensor}
