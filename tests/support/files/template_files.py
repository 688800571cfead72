"""The files that ComfyUI's own templates and this pack's name, with tiny weights, for a host to run them on.

Diffusion models are in the layouts in which they are published, VAEs as `stock_files` writes them, text encoders as
`narrow_encoders` makes them.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.cases.families import FAMILIES
from tests.support.files.stock_files import clip_l, t5_xxl
from tests.support.host.stock_prompts import write_cases
from tests.support.programs import run_program

Weights = dict[str, torch.Tensor]


def pixart_sigma() -> Weights:
    """Of the width that ComfyUI takes for granted, in diffusers' layout."""
    sizes = {"num_attention_heads": 16, "attention_head_dim": 72, "cross_attention_dim": 1152, "num_layers": 1}
    sizes |= {"out_channels": 8, "sample_size": 128, "caption_channels": 4096}
    return FAMILIES["pixart-alpha"].of_config(use_additional_conditions=False, **sizes).build().state_dict()


def unread() -> Weights:
    """For a file that is only chosen."""
    return {"unread": torch.zeros(1)}


PICTURE, VAE = "example.png", "a VAE"
# By path in the models folder: weights, a case of `stock_cases`, or a VAE of `stock_files`.
EXAMPLE_FILES: Mapping[str, Callable[[], Weights] | str] = {
    "diffusion_models/flux1-dev.safetensors": "flux-dev-encoded",
    "text_encoders/clip_l.safetensors": clip_l,
    "text_encoders/t5xxl_fp16.safetensors": t5_xxl,
    "vae/ae.safetensors": VAE,
    "checkpoints/sd3.5_large_fp8_scaled.safetensors": unread,
    "diffusion_models/PixArt-Sigma-XL-2-1024-MS.safetensors": pixart_sigma,
    "vae/sdxl_vae.safetensors": unread,
    "diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors": "wan-2.1-t2v",
    "text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors": unread,
    "vae/wan_2.1_vae.safetensors": unread,
    "diffusion_models/qwen_image_fp8_e4m3fn.safetensors": "qwen-image",
    "text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors": unread,
    "vae/qwen_image_vae.safetensors": unread,
    "diffusion_models/qwen_image_edit_2511_fp8mixed.safetensors": "qwen-image-edit-2511",
    "diffusion_models/z_image_turbo_bf16.safetensors": "z-image",
    "text_encoders/qwen_3_4b.safetensors": unread,
    "diffusion_models/flux-2-klein-base-9b-fp8.safetensors": "flux-2-klein",
    "text_encoders/qwen_3_8b_fp8mixed.safetensors": unread,
    "vae/flux2-vae.safetensors": unread,
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


@contextlib.contextmanager
def files_in(
    files: Mapping[str, Callable[[], Weights] | str], comfyui: Path, base: Path, scratch: Path
) -> Iterator[None]:
    """Puts files into the model folders of a host with this base folder, and takes them away. The picture that its
    templates edit, and that ComfyUI comes with, stays in the input folder."""
    written = []
    (base / "input").mkdir(exist_ok=True)
    shutil.copy(comfyui / "input" / PICTURE, base / "input")
    write_cases(comfyui, scratch, {make for make in files.values() if isinstance(make, str) and make != VAE})
    models = scratch / "models" / "diffusion_models"
    run_program(comfyui, "tests.support.files.stock_files", models / f"{VAE}.safetensors")
    for name, make in files.items():
        path = base / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(make, str):
            shutil.copy(models / f"{make}.safetensors", path)
        else:
            save_file({key: tensor.contiguous() for key, tensor in make().items()}, path)
        written.append(path)
    yield
    for path in written:
        path.unlink(missing_ok=True)  # another fixture may have put and taken the same
