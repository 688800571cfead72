"""One of ComfyUI's VAEs whose model runs in the worker group. ComfyUI's own object does everything else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import comfy.model_management
import comfy.model_patcher
import comfy.sd
import torch

from ..parallel_backend.compat import hooks_of
from ..parallel_backend.device import generators
from ..parallel_backend.errors import RequestError
from ..parallel_backend.vae.classes import class_of
from ..worker.comfyui.model import dtype_name
from ..worker.comfyui.source import VaeSource
from ..worker.comfyui.vae import fingerprint, metadata_of, structure_of, weights_of
from ..worker.host.client import WorkerGroup
from ..worker.wire.operations import RANDOM
from ..worker.wire.tensors import Tensors
from .errors import Refused
from .model.host_file import COMFYUI, list_rank_arguments
from .model.remote_weights import check_interrupt

CHUNKED = "comfy_has_chunked_io"
PATCHES = ("patches", "object_patches", "weight_wrapper_patches")
TILED = (
    *("decode_tiled_", "decode_tiled_1d", "decode_tiled_3d", "_decode_tiled_owned"),
    *("encode_tiled_", "encode_tiled_1d", "encode_tiled_3d", "_encode_tiled_owned"),
)
METHODS = ("forward", "encode", "decode")
CPU = torch.device("cpu")


class RemoteStage:
    """Replaces a VAE's first_stage_model and sends its calls to the worker group."""

    def __init__(
        self, group: WorkerGroup, ranks: int, source: VaeSource, original: torch.nn.Module, device: torch.device
    ) -> None:
        """ranks: how many to start if none run. original: the model whose weights the group has or is sent. device:
        where the original would compute.
        """
        self.group = group
        self.device = device
        self.ranks = ranks
        self.source = source
        self.original: Any = original
        self.draws_noise = class_of(original).draws_noise
        setattr(self, CHUNKED, getattr(original, CHUNKED, False))

    def decode_output_shape(self, latents: torch.Size) -> tuple[int, ...]:
        return self.original.decode_output_shape(latents)

    def decode(self, latents: torch.Tensor, output_buffer: torch.Tensor | None = None) -> torch.Tensor:
        pictures = self.run("decode", latents)
        return pictures if output_buffer is None else output_buffer.copy_(pictures)

    def encode(self, pictures: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
        """device: where the original would compute, if it moves parts of a video there itself."""
        return self.run("encode", pictures)

    def run(self, direction: str, given: torch.Tensor) -> torch.Tensor:
        """Raises RequestRefused and WorkerGroupError."""
        tensors, generator = {"input": given}, None
        if self.draws_noise:  # the ranks then draw what ComfyUI would draw
            generator = generators(self.device if self.device.type == self.group.device else CPU)[-1]
            tensors[RANDOM] = generator.get_state()
        source = self.source.to_json()
        results = self.group.run_vae(direction, source, tensors, self.weights, self.ranks, check_interrupt)
        if generator is not None and results[RANDOM].shape == tensors[RANDOM].shape:
            generator.set_state(results[RANDOM])
        return results["result"]

    def weights(self) -> Tensors:
        """Returns the weights to send."""
        return weights_of(self.original)


class RemoteVaePatcher(comfy.model_patcher.ModelPatcher):
    """The patcher of a VAE whose weights are in the ranks.

    ComfyUI makes room on its device for rank 0's share of the work. It limits how much of a batch it takes at a time by
    that device's free memory.
    """

    def get_free_memory(self, device: torch.device) -> float:
        return super().get_free_memory(self.load_device)


def remote_vae(vae: comfy.sd.VAE, group: WorkerGroup, ranks: int, dtype: torch.dtype | None, file: str = "") -> Any:
    """Returns the same VAE with its model in the worker group. file: the ranks read it. Without one, its weights are
    sent.

    dtype: replaces the VAE's own. Raises Refused for a VAE that cannot be split over ranks, or that nodes have changed.
    """
    vae.throw_exception_if_invalid()
    module: Any = vae.first_stage_model
    try:
        kind = class_of(module)
    except RequestError as error:
        raise Refused(*error.explanation) from error
    refuse_changed(vae)
    chosen = dtype or vae.vae_dtype
    arguments = list_rank_arguments(ranks > 1, group.device == CPU.type)
    source = VaeSource(COMFYUI, arguments, file, type(module).__name__, dtype_name(chosen))
    if not file:
        source = replace(
            source,
            fingerprint=fingerprint(weights_of(module)),
            metadata=tuple(metadata_of(module).items()),
            structure=structure_of(module),
        )
    found: Any = copy.copy(vae)
    found.first_stage_model = RemoteStage(group, ranks, source, module, vae.device)
    found.patcher = RemoteVaePatcher(torch.nn.Module(), load_device=vae.device, offload_device=CPU)
    found.device, found.vae_dtype = CPU, chosen
    kept, sharers = vae.model_size(), 1 if kind.tiles else ranks  # rank 0 joins the tiles on its device
    for name in ("memory_used_decode", "memory_used_encode"):
        setattr(found, name, scale_estimate(getattr(vae, name), sharers, kept))
    for name in TILED:
        setattr(found, name, refuse_tiles)
    return found


def refuse_tiles(*_given: Any, **_options: Any) -> Any:
    """ComfyUI's VAE switches to tiles if its memory runs out. The ranks report their own lack of memory as an error."""
    raise Refused(
        "ComfyUI ran out of memory, and the parallel VAE cannot cut its pictures into tiles.",
        "Use a smaller size or batch, or free models in ComfyUI.",
    )


def scale_estimate(estimate: Callable[..., float], sharers: int, kept: int) -> Callable[..., float]:
    """Returns an estimate of rank 0's memory on ComfyUI's device. sharers: how many ranks share what is estimated.
    kept: the weights, in bytes. It is refused if the estimate itself lacks memory: ComfyUI would use it for the tiles,
    without having it."""

    def scaled(shape: Any, dtype: Any) -> float:
        try:
            return estimate(shape, dtype) / sharers + kept
        except comfy.model_management.OOM_EXCEPTION:
            return refuse_tiles()

    return scaled


def refuse_changed(vae: Any) -> None:
    """Raises Refused if a node has changed the VAE, because the ranks would not have the change."""
    patcher, module = vae.patcher, vae.first_stage_model
    changes = [name for name in PATCHES if getattr(patcher, name, None)]
    for name, part in module.named_modules():
        changes += [name or "the model"] if any(hooks_of(part)) else []
        changes += [f"{name} {method}".strip() for method in METHODS if method in vars(part)]
    if changes:
        raise Refused(
            f"The parallel VAE cannot honour a change of its {', '.join(changes[:3])}: it runs in worker processes.",
            "Remove the node that changes the VAE, or use the stock VAE nodes.",
        )
