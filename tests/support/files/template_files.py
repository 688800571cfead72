"""The files that ComfyUI's own templates and this pack's name, with tiny weights, for a host to run them on.

Diffusion models are in the layouts in which they are published, VAEs as `stock_files` writes them, text encoders as
`narrow_encoders` makes them.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.support.cases.families import FAMILIES
from tests.support.cases.files.single_file_cases import PREFIX, PUBLISHED
from tests.support.files.stock_files import ENCODERS, VAES, Weights
from tests.support.host.stock_prompts import write_cases
from tests.support.programs import run_program

Vaes = dict[str, Weights]
Files = Mapping[str, Callable[[Vaes], Weights] | str]
Smaller = Mapping[str, Mapping[str, int]]


def diffusion(name: str, **config: object) -> Weights:
    """A tiny model that takes the text of the family's own encoders, as a file in its original layout."""
    published = PUBLISHED[name]
    family = replace(published.family, config={**published.family.config, **config})
    return published.layout.write(family.build().state_dict())


def diffusers_file(name: str, **config: object) -> Weights:
    """The same in diffusers' layout."""
    family = FAMILIES[name]
    return replace(family, config={**family.config, **config}).build().state_dict()


def flux(name: str) -> Weights:
    sizes = {"num_layers": 1, "num_single_layers": 1}
    return diffusion(name, joint_attention_dim=4096, pooled_projection_dim=768, **sizes)


def sd3(name: str) -> Weights:
    return diffusion(name, joint_attention_dim=4096, pooled_projection_dim=2048, pos_embed_max_size=96)


def pixart_sigma() -> Weights:
    """Of the width that ComfyUI takes for granted."""
    sizes = {"num_attention_heads": 16, "attention_head_dim": 72, "cross_attention_dim": 1152, "num_layers": 1}
    return diffusers_file("pixart-sigma", out_channels=8, sample_size=128, caption_channels=4096, **sizes)


def checkpoint(model: Weights, encoders: Sequence[str], vae_prefix: str, vae: Weights) -> Weights:
    """A diffusion model with its text encoders and its VAE in one file."""
    parts = {PREFIX: model, vae_prefix: vae}
    parts |= {f"text_encoders.{name}.transformer.": ENCODERS[name]() for name in encoders}
    return {prefix + name: tensor for prefix, weights in parts.items() for name, tensor in weights.items()}


def sd35_checkpoint(vaes: Vaes) -> Weights:
    return checkpoint(sd3("sd3.5"), ("clip_l", "clip_g", "t5xxl"), "first_stage_model.", vaes["flux"])


def unread(_: Vaes) -> Weights:
    """For a file that is only chosen."""
    return {"unread": torch.zeros(1)}


PICTURE = "example.png"
# By path in the models folder: weights, or a case of `stock_cases`.
EXAMPLE_FILES: Files = {
    "diffusion_models/flux1-dev.safetensors": lambda _: flux("flux-dev"),
    "text_encoders/clip_l.safetensors": lambda _: ENCODERS["clip_l"](),
    "text_encoders/t5xxl_fp16.safetensors": lambda _: ENCODERS["t5xxl"](),
    "vae/ae.safetensors": lambda vaes: vaes["flux"],
    "checkpoints/sd3.5_large_fp8_scaled.safetensors": sd35_checkpoint,
    "diffusion_models/PixArt-Sigma-XL-2-1024-MS.safetensors": lambda _: pixart_sigma(),
    "vae/sdxl_vae.safetensors": lambda vaes: vaes["sdxl"],
    "diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors": "wan-2.1-t2v",
    "text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors": lambda _: ENCODERS["umt5xxl"](),
    "vae/wan_2.1_vae.safetensors": lambda vaes: vaes["wan"],
    "diffusion_models/qwen_image_fp8_e4m3fn.safetensors": "qwen-image-encoded",
    "text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors": lambda _: ENCODERS["qwen2.5_7b"](),
    "vae/qwen_image_vae.safetensors": lambda vaes: vaes["wan"],
    "diffusion_models/qwen_image_edit_2511_fp8mixed.safetensors": "qwen-image-edit-2511",
    "diffusion_models/z_image_turbo_bf16.safetensors": "z-image",
    "text_encoders/qwen_3_4b.safetensors": lambda _: ENCODERS["qwen3_4b"](),
    "diffusion_models/flux-2-klein-base-9b-fp8.safetensors": "flux-2-klein",
    "text_encoders/qwen_3_8b_fp8mixed.safetensors": lambda _: ENCODERS["qwen3_8b"](),
    "vae/flux2-vae.safetensors": lambda vaes: vaes["flux2"],
    "diffusion_models/flux2_dev_fp8mixed.safetensors": "flux-2-dev",
    "text_encoders/mistral_3_small_flux2_fp8.safetensors": unread,
    "diffusion_models/krea2_turbo_fp8_scaled.safetensors": "krea-2",
    "text_encoders/qwen3vl_4b_fp8_scaled.safetensors": unread,
    "diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors": "wan-2.1-t2v",
    "diffusion_models/wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors": "wan-2.1-t2v",
    "checkpoints/ltx-2-19b-distilled-fp8.safetensors": "ltx-2",
    "text_encoders/gemma_3_12B_it_fp4_mixed.safetensors": unread,
    "latent_upscale_models/ltx-2-spatial-upscaler-x2-1.0.safetensors": unread,
    "diffusion_models/minimax_h3_fl2va_pruned_int8_convrot.safetensors": "minimax",
    "text_encoders/qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors": unread,
    "vae/minimax_h3_video_vae_fp16.safetensors": unread,
    "vae/minimax_h3_audio_vae_fp32.safetensors": unread,
    "checkpoints/sd_xl_base_1.0.safetensors": unread,
    "checkpoints/sdxl_lightning_4step.safetensors": unread,
}


def write_vaes(comfyui: Path, folder: Path) -> Vaes:
    run_program(comfyui, "tests.support.files.stock_files", folder)
    return {name: load_file(folder / f"{name}.safetensors") for name in VAES}


@contextlib.contextmanager
def files_in(files: Files, comfyui: Path, base: Path, scratch: Path) -> Iterator[None]:
    """Puts files into the model folders of a host with this base folder, and takes them away. The picture that its
    templates edit, and that ComfyUI comes with, stays in the input folder."""
    written, vaes = [], write_vaes(comfyui, scratch)
    (base / "input").mkdir(exist_ok=True)
    shutil.copy(comfyui / "input" / PICTURE, base / "input")
    write_cases(comfyui, scratch, {make for make in files.values() if isinstance(make, str)})
    for name, make in files.items():
        path = base / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(make, str):
            shutil.copy(scratch / "models" / "diffusion_models" / f"{make}.safetensors", path)
        else:
            save_file({key: tensor.contiguous() for key, tensor in make(vaes).items()}, path)
        written.append(path)
    yield
    for path in written:
        path.unlink()


def shrink(prompt: dict, smaller: Smaller) -> None:
    """Changes inputs by node type; a type or an input that the prompt does not have is a mistake in the test."""
    for class_type, inputs in smaller.items():
        nodes = [node for node in prompt.values() if node["class_type"] == class_type]
        assert nodes and all(inputs.keys() <= node["inputs"].keys() for node in nodes), class_type
        for node in nodes:
            node["inputs"].update(inputs)


def pictures(file: Path) -> list[np.ndarray]:
    """The picture (height, width, 3) in an image file, or those in a video."""
    if file.suffix != ".mp4":
        return [np.asarray(Image.open(file).convert("RGB"))]
    with av.open(file) as video:
        return [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
