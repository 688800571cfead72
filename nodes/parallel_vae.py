"""The nodes `Parallel VAE Decode` and `Parallel VAE Encode`: an image VAE over all ranks, a band of it on each."""

from __future__ import annotations

from typing import Any

import comfy.model_management
import folder_paths
import torch
from comfy_api.latest import io

from ..parallel_backend.weights.loading import DTYPES
from ..parallel_backend.weights.vae_files import describe_vae
from .errors import Refused
from .model.remote_weights import check_interrupt
from .workers.group import device_count, worker_group
from .workers.installed import check_installed

AUTO = "auto"
PIXELS = 8  # of a latent's side


def vae_inputs() -> list[io.Input]:
    """Which VAE, and in what precision."""
    return [
        io.Combo.Input("vae_name", options=list_vaes(), tooltip="A safetensors file in models/vae (AutoencoderKL)."),
        io.Combo.Input(
            "dtype",
            options=[AUTO, *DTYPES],
            default=AUTO,
            tooltip="What the VAE computes in. auto: what ComfyUI would choose for its own device.",
        ),
    ]


class ParallelVAEDecode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ParallelDiT_VAEDecode",
            display_name="Parallel VAE Decode",
            category="model/parallel",
            description="Decodes a latent on all ranks of the worker group, each with a band of the image. The same "
            "image as VAE Decode, without tiles and their seams.",
            search_aliases=["ParallelDiT", "vae", "xdit"],
            inputs=[io.Latent.Input("samples", tooltip="The latent of an image; not of a video."), *vae_inputs()],
            outputs=[io.Image.Output(tooltip="The image, as VAE Decode gives it.")],
        )

    @classmethod
    def execute(cls, samples: dict[str, Any], vae_name: str, dtype: str) -> io.NodeOutput:
        latents = samples["samples"]
        if latents.is_nested or latents.ndim != 4:
            raise Refused("Parallel VAE Decode takes latents of images, (batch, channels, height, width); not video.")
        image = run("decode", vae_name, dtype, latents)
        return io.NodeOutput(((image.float() + 1) / 2).clamp(0, 1).movedim(1, -1))


class ParallelVAEEncode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ParallelDiT_VAEEncode",
            display_name="Parallel VAE Encode",
            category="model/parallel",
            description="Encodes an image on all ranks of the worker group, each with a band of it.",
            search_aliases=["ParallelDiT", "vae", "xdit"],
            inputs=[io.Image.Input("pixels", tooltip="The image to encode."), *vae_inputs()],
            outputs=[io.Latent.Output(tooltip="The latent, as VAE Encode gives it.")],
        )

    @classmethod
    def execute(cls, pixels: torch.Tensor, vae_name: str, dtype: str) -> io.NodeOutput:
        rows, columns = (size // PIXELS * PIXELS for size in pixels.shape[1:3])
        top, left = (pixels.shape[1] - rows) // 2, (pixels.shape[2] - columns) // 2  # as VAE Encode crops
        image = pixels[:, top : top + rows, left : left + columns, :3].movedim(-1, 1) * 2 - 1
        return io.NodeOutput({"samples": run("encode", vae_name, dtype, image).float()})


def run(direction: str, vae_name: str, dtype: str, tensor: torch.Tensor) -> torch.Tensor:
    """The worker group's result. Raises Refused for a file that is not there or not an AutoencoderKL, and
    NotInstalled where diffusers is not installed."""
    check_installed()
    if vae_name not in list_vaes():
        raise Refused(f"There is no VAE {vae_name!r} among the safetensors files in ComfyUI's models/vae.")
    path = folder_paths.get_full_path_or_raise("vae", vae_name)
    describe_vae(path)
    if dtype == AUTO:
        chosen = comfy.model_management.vae_dtype(allowed_dtypes=[torch.bfloat16, torch.float32])
        dtype = next(name for name, value in DTYPES.items() if value == chosen)
    return worker_group().run_vae(direction, path, dtype, tensor, device_count(), check_interrupt)


def list_vaes() -> list[str]:
    return [name for name in folder_paths.get_filename_list("vae") if name.endswith(".safetensors")]
