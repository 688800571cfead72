"""Tiny VAEs with seeded weights, in the layouts that ComfyUI detects: `files.stock_files COMFYUI FILE` writes one of
Flux, as small as its detection builds it; `files.stock_files:write_video_vaes COMFYUI FOLDER` writes those of videos.

Of a text encoder ComfyUI needs the few tensors that it is detected by; `narrow_encoders` makes the rest.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.cases.vaes.host_vaes import SOUND, VAES
from tests.support.host.mounted import import_comfyui

Weights = dict[str, torch.Tensor]

CHANNELS = 32  # the norms have 32 groups
WAN_CHANNELS = 8
LEVELS = {"ch_mult": (1, 2, 4, 4), "num_res_blocks": 2, "attn_resolutions": (), "resolution": 256}


def empty(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def clip_l() -> Weights:
    mlps = {f"text_model.encoder.layers.{layer}.mlp.fc1.weight": empty(3072, 768) for layer in (0, 1)}
    return {**mlps, "text_model.final_layer_norm.weight": torch.ones(768, dtype=torch.float16)}


def t5_xxl() -> Weights:
    return {
        "encoder.block.23.layer.1.DenseReluDense.wi_1.weight": empty(10240, 1),
        "encoder.final_layer_norm.weight": torch.ones(4096, dtype=torch.float16),
    }


def seeded(shapes: Weights) -> Weights:
    """Weights of these shapes: norms that leave their input as it is, matrices that keep its variance."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, like in shapes.items():
        if "gamma" in name or ("norm" in name and name.endswith("weight")):
            weights[name] = torch.ones(like.shape)
        elif like.ndim < 2:
            weights[name] = torch.zeros(like.shape)
        else:
            weights[name] = torch.randn(like.shape, generator=generator) * like[0].numel() ** -0.5
    return weights


def wan() -> Weights:
    """A VAE of Wan 2.1."""
    module = importlib.import_module("comfy.ldm.wan.vae")
    return seeded(module.WanVAE(dim=WAN_CHANNELS, z_dim=16, temperal_downsample=[False, True, True]).state_dict())


def main(comfyui: str, file: str) -> None:
    """The decoder alone: an encoder would be ComfyUI's full size in any case."""
    import_comfyui(comfyui)
    module = importlib.import_module("comfy.ldm.modules.diffusionmodules.model")
    built = module.Decoder(ch=CHANNELS, out_ch=3, in_channels=3, z_channels=16, **LEVELS)
    save_file(seeded({f"decoder.{name}": tensor for name, tensor in built.state_dict().items()}), file)


def write_video_vaes(comfyui: str, folder: str) -> None:
    """Wan 2.1's, one of LTX that draws noise, and MiniMax-H3's of videos and of sound, which ComfyUI detects where it
    builds tiny ones (`tiny_vaes`)."""
    import_comfyui(comfyui)
    save_file(wan(), Path(folder) / "wan.safetensors")
    save_file(VAES["minimax-h3"].made().state_dict(), Path(folder) / "minimax.safetensors")
    save_file(SOUND.made().state_dict(), Path(folder) / "minimax-sound.safetensors")
    ltx = VAES["ltx-0.9.1"].made()
    metadata = {"config": json.dumps({"vae": ltx.config})}
    save_file(ltx.state_dict(), Path(folder) / "ltx.safetensors", metadata)
