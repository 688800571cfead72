"""`python -m tests.support.files.stock_files COMFYUI FOLDER`:
tiny VAEs with seeded weights, in the layouts that ComfyUI detects.

The VAEs are ComfyUI's own classes, as small as its detection builds them. Of a text encoder it needs the few tensors
that it is detected by; `narrow_encoders` makes the rest.
"""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file

Weights = dict[str, torch.Tensor]

CHANNELS = 32  # the norms have 32 groups
WAN_CHANNELS = 8
LEVELS = {"ch_mult": (1, 2, 4, 4), "num_res_blocks": 2, "attn_resolutions": (), "resolution": 256}


def empty(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def clip_layers(layers: tuple[int, ...], width: int) -> Weights:
    """What a CLIP is told by: the MLPs of some layers, and the last norm in checkpoints."""
    mlps = {f"text_model.encoder.layers.{layer}.mlp.fc1.weight": empty(4 * width, width) for layer in layers}
    return {**mlps, "text_model.final_layer_norm.weight": torch.ones(width, dtype=torch.float16)}


def t5_xxl() -> Weights:
    return {
        "encoder.block.23.layer.1.DenseReluDense.wi_1.weight": empty(10240, 1),
        "encoder.final_layer_norm.weight": torch.ones(4096, dtype=torch.float16),
    }


def vocabulary() -> torch.Tensor:
    """A sentencepiece model, as files of umT5 and Gemma carry theirs."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a few words of which each letter is a piece"]),
        model_writer=model,
        model_type="char",
        hard_vocab_limit=False,
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    return torch.frombuffer(bytearray(model.getvalue()), dtype=torch.uint8)


def umt5_xxl() -> Weights:
    return {**t5_xxl(), "spiece_model": vocabulary()}


def qwen3(width: int) -> Weights:
    layer = "model.layers.0."
    norms = {f"{layer}post_attention_layernorm.weight": width, f"{layer}self_attn.q_norm.weight": 128}
    return {name: torch.ones(size, dtype=torch.float16) for name, size in norms.items()}


ENCODERS = {
    "clip_l": lambda: clip_layers((0, 1), 768),
    "clip_g": lambda: clip_layers((0, 1, 30), 1280),
    "t5xxl": t5_xxl,
    "umt5xxl": umt5_xxl,
    "qwen3_4b": lambda: qwen3(2560),
    "qwen3_8b": lambda: qwen3(4096),
    "qwen2.5_7b": lambda: {"model.layers.0.self_attn.k_proj.bias": empty(512)},
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


def decoder(latent_channels: int) -> Weights:
    """The decoder of latent diffusion's VAE. An encoder would be ComfyUI's full size in any case."""
    module = importlib.import_module("comfy.ldm.modules.diffusionmodules.model")
    built = module.Decoder(ch=CHANNELS, out_ch=3, in_channels=3, z_channels=latent_channels, **LEVELS)
    return seeded({f"decoder.{name}": tensor for name, tensor in built.state_dict().items()})


def sdxl() -> Weights:
    """SDXL's, which PixArt-Sigma has too."""
    identity = torch.eye(4)[:, :, None, None]
    return {**decoder(4), "post_quant_conv.weight": identity, "post_quant_conv.bias": torch.zeros(4)}


def flux2() -> Weights:
    """Flux.2's: 32 channels in patches of 2×2, normalised."""
    identity = torch.eye(32)[:, :, None, None]
    post_quant = {"post_quant_conv.weight": identity, "post_quant_conv.bias": torch.zeros(32)}
    return {**decoder(32), **post_quant, "bn.running_mean": torch.zeros(128), "bn.running_var": torch.ones(128)}


def wan() -> Weights:
    """Wan 2.1's, which Qwen-Image has too."""
    module = importlib.import_module("comfy.ldm.wan.vae")
    built = module.WanVAE(dim=WAN_CHANNELS, z_dim=16, temperal_downsample=[False, True, True])
    return seeded(built.state_dict())


VAES = {"flux": lambda: decoder(16), "flux2": flux2, "sdxl": sdxl, "wan": wan}


def main(comfyui: str, folder: str) -> None:
    sys.path.insert(0, comfyui)
    sys.argv = [sys.argv[0], "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    for name, weights in VAES.items():
        save_file(weights(), Path(folder) / f"{name}.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
