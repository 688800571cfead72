"""The nodes `Parallel VAE Decode` and `Parallel VAE Encode`.

They run a VAE for images or videos on all ranks. Each rank computes one band of rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import comfy.sd
import comfy.utils
import folder_paths
import torch
from comfy_api.latest import io

from ..parallel_backend.errors import RequestError
from ..parallel_backend.plan import AUTO
from ..parallel_backend.weights.loading import DTYPES
from ..worker.comfyui.vae import describe_vae
from ..worker.errors import NoWorkerGroup
from ..worker.settings import REFUSE
from .errors import Refused
from .model.model_files import read_header
from .model.sampling import show_on_node
from .remote_vae import remote_vae
from .workers.group import device_count, worker_group
from .workers.installed import check_installed

NO_FILE = "(no file in models/vae)"


def vae_inputs() -> list[io.Input]:
    """Returns the inputs that choose the VAE and its precision."""
    return [
        io.Combo.Input(
            "vae_name",
            options=list_vaes() or [NO_FILE],
            tooltip="A safetensors file in models/vae. Not used if a VAE is connected.",
        ),
        io.Combo.Input(
            "dtype",
            options=[AUTO, *DTYPES],
            default=AUTO,
            tooltip="The dtype that the VAE computes in. auto: ComfyUI's choice for its own device.",
        ),
        io.Vae.Input("vae", optional=True, tooltip="Replaces the file: from Load VAE, or from a checkpoint loader."),
    ]


class ParallelVAEDecode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ParallelDiT_VAEDecode",
            display_name="Parallel VAE Decode",
            category="ParallelDiT",
            description="Decodes the latent of an image or a video on all ranks of the worker group. Each rank "
            "decodes a band of rows. The pictures are those of VAE Decode, without tiles and their seams.",
            search_aliases=["ParallelDiT", "vae", "xdit"],
            inputs=[io.Latent.Input("samples", tooltip="The latent of images or of a video."), *vae_inputs()],
            outputs=[io.Image.Output(tooltip="The images or the video's frames, as from VAE Decode.")],
        )

    @classmethod
    def execute(cls, samples: dict[str, Any], vae_name: str, dtype: str, vae: Any = None) -> io.NodeOutput:
        latents = samples["samples"]
        if latents.is_nested:  # a video with its sound; VAE Decode accepts this too
            latents = latents.unbind()[0]

        def decode(shared: Any) -> torch.Tensor:
            check_latents(latents, shared)
            return shared.decode(latents)

        images = run_shared(vae_name, dtype, vae, decode)
        return io.NodeOutput(images.flatten(0, -4))  # videos become their frames, as VAE Decode returns them


class ParallelVAEEncode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ParallelDiT_VAEEncode",
            display_name="Parallel VAE Encode",
            category="ParallelDiT",
            description="Encodes images or a video's frames on all ranks of the worker group. Each rank encodes a "
            "band of rows.",
            search_aliases=["ParallelDiT", "vae", "xdit"],
            inputs=[io.Image.Input("pixels", tooltip="The images or the video's frames to encode."), *vae_inputs()],
            outputs=[io.Latent.Output(tooltip="The latent, as from VAE Encode.")],
        )

    @classmethod
    def execute(cls, pixels: torch.Tensor, vae_name: str, dtype: str, vae: Any = None) -> io.NodeOutput:
        return io.NodeOutput({"samples": run_shared(vae_name, dtype, vae, lambda shared: shared.encode(pixels))})


def run_shared(vae_name: str, dtype: str, vae: comfy.sd.VAE | None, run: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """Runs one of ComfyUI's VAEs, whose model is on all ranks; without a worker group as stock, on ComfyUI's device.

    Raises Refused for a missing file and for a VAE that cannot be split over ranks. Raises NotInstalled if diffusers is
    missing, and NoWorkerGroup if the settings refuse to run as stock.
    """
    check_installed()
    wanted, file, found = DTYPES.get(dtype), "", vae
    if found is None:
        if vae_name not in list_vaes():
            raise Refused(f"There is no VAE {vae_name!r} among the safetensors files in ComfyUI's models/vae.")
        file = folder_paths.get_full_path_or_raise("vae", vae_name)
        found = file_vae(file, vae_name, wanted)
    group = worker_group()
    try:
        return run(remote_vae(found, group, group.ranks or device_count(), wanted, file))
    except NoWorkerGroup as error:
        if group.settings.when_not_parallel == REFUSE:
            raise
        said = f"The VAE runs as stock, on ComfyUI's own device alone. {error.explanation.brief}"
    if vae is not None and wanted not in (None, vae.vae_dtype):
        said = f"{said} The connected VAE computes in {vae.vae_dtype}, not in {wanted}."
    logging.warning("[ParallelDiT] %s", said)
    show_on_node(said)
    if vae is None:  # as ComfyUI's own loader does
        weights, metadata = comfy.utils.load_torch_file(file, return_metadata=True)
        vae = comfy.sd.VAE(sd=weights, metadata=metadata, dtype=wanted)
    return run(vae)


def check_latents(latents: torch.Tensor, vae: Any) -> None:
    """Raises Refused for latents that the VAE cannot take. An image VAE takes the first frame of a video's latents."""
    channels, dims = vae.latent_channels, vae.latent_dim + 2
    if latents.shape[1] != channels or latents.ndim not in (dims, 5):
        frames = "frames, " if dims > 4 else ""
        raise Refused(
            f"The latent has shape {tuple(latents.shape)}, but this VAE takes (batch, {channels}, {frames}height, "
            "width).",
            "Use the VAE that belongs to the model.",
        )


def file_vae(file: str, name: str, dtype: torch.dtype | None) -> comfy.sd.VAE:
    """Returns ComfyUI's VAE for a file, without its weights. Raises Refused if the file has no VAE or is broken."""
    try:
        read_header(Path(file))
        return describe_vae(file, dtype).vae
    except RequestError as error:
        cause, advice, _ = error.explanation
        raise Refused(f"{name} is no VAE: {cause}", advice) from error


def list_vaes() -> list[str]:
    return [name for name in folder_paths.get_filename_list("vae") if name.endswith(".safetensors")]
