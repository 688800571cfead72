"""One of ComfyUI's VAEs whose model runs in the worker group. ComfyUI's own object does everything else."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import comfy.model_patcher
import comfy.sd
import torch

from ..parallel_backend.compat import hooks_of
from ..parallel_backend.device import generators
from ..parallel_backend.errors import RequestError
from ..parallel_backend.vae.classes import VaeClass, class_of
from ..worker.comfyui.model import dtype_name
from ..worker.comfyui.source import VaeSource
from ..worker.comfyui.vae import fingerprint, metadata_of, structure_of, weights_of
from ..worker.host.client import WorkerGroup
from ..worker.wire.operations import RANDOM
from .errors import Refused
from .inside.networks import SHARED
from .inside.references import COMFYUI
from .model.host_file import list_rank_arguments
from .model.sampling import check_interrupt

CHUNKED = "comfy_has_chunked_io"
SAFETENSORS = (".safetensors", ".sft")
PATCHES = ("patches", "object_patches", "weight_wrapper_patches", "hook_patches")
TILED = (
    *("decode_tiled_", "decode_tiled_1d", "decode_tiled_3d", "_decode_tiled_owned"),
    *("encode_tiled_", "encode_tiled_1d", "encode_tiled_3d", "_encode_tiled_owned"),
)
LOADERS = ("load_vae_patcher", "load_checkpoint_vae_patcher")  # functions of comfy.sd; the first argument is a file
FUNCTION_TYPES = (types.FunctionType, types.MethodType)
KNOWN = ("comfy.", "torch.")  # modules whose functions ranks have
CPU = torch.device("cpu")


@dataclass(eq=False)
class RemoteStage:
    """Replaces a VAE's first_stage_model and sends its calls to the worker group.

    ranks: how many to start if none run. original: the model whose weights the group has or is sent. device: where the
    original would compute."""

    group: WorkerGroup
    ranks: int
    source: VaeSource
    original: Any
    device: torch.device

    def __post_init__(self) -> None:
        self.draws_noise = class_of(self.original).draws_noise
        setattr(self, CHUNKED, getattr(self.original, CHUNKED, False))

    def __getattr__(self, name: str) -> Any:
        """Packs may replace ComfyUI's methods by others, which use more of the model."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise Refused(f"A node pack uses {name} of the VAE's model, which is in the ranks.")

    def decode_output_shape(self, latents: torch.Size) -> tuple[int, ...]:
        return self.original.decode_output_shape(latents)

    def decode(self, latents: torch.Tensor, output_buffer: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
        if options:
            raise Refused(f"The ranks do not know the VAE's options {', '.join(sorted(options))}.")
        pictures = self.run("decode", latents)
        return pictures if output_buffer is None else output_buffer.copy_(pictures)

    def encode(self, pictures: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
        """device: where the original would compute, if it moves parts of a video there itself."""
        return self.run("encode", pictures)

    def decode_tiled(self, latents: torch.Tensor, **_asked: Any) -> torch.Tensor:
        """Classes that have this cut tiles of their own, whatever is asked."""
        return self.decode(latents)

    def encode_tiled(self, pictures: torch.Tensor, **_asked: Any) -> torch.Tensor:
        return self.encode(pictures)

    def run(self, direction: str, given: torch.Tensor) -> torch.Tensor:
        """Raises RequestRefused and WorkerGroupError."""
        tensors, generator = {"input": given}, None
        if self.draws_noise:  # the ranks then draw what ComfyUI would draw
            generator = generators(self.device if self.device.type == self.group.device else CPU)[-1]
            tensors[RANDOM] = generator.get_state()
        source, weights = self.source.to_json(), partial(weights_of, self.original)  # to send, if the ranks need them
        results = self.group.run_vae(direction, source, tensors, weights, self.ranks, check_interrupt)
        if generator is not None and results[RANDOM].shape == tensors[RANDOM].shape:
            generator.set_state(results[RANDOM])
        return results["result"]


class RemoteVaePatcher(comfy.model_patcher.ModelPatcher):
    """The patcher of a VAE whose weights are in the ranks.

    ComfyUI makes room on its device for rank 0's share of the work. It limits how much of a batch it takes at a time by
    that device's free memory.
    """

    def get_free_memory(self, device: torch.device) -> float:
        return super().get_free_memory(self.load_device)


def remote_vae(vae: Any, group: WorkerGroup, ranks: int, dtype: torch.dtype | None, method: str) -> comfy.sd.VAE:
    """Returns the same VAE with its model in the worker group, for a call of this method. The ranks read the file that
    the VAE names, if its weights are the file's. Else they are sent.

    dtype: replaces the VAE's own. Raises Refused for a VAE that cannot be split over ranks, or that nodes have changed.
    """
    kind = check_vae(vae)
    module, held = vae.first_stage_model, vae.vae_dtype
    source = VaeSource(
        comfyui=str(COMFYUI),
        arguments=list_rank_arguments(ranks > 1, group.device == CPU.type),
        file=file_of(vae),
        vae_class=type(module).__name__,
        dtype=dtype_name(dtype or held),
        held=dtype_name(held),
        fingerprint=fingerprint(weights_of(module), held),
        metadata=tuple(metadata_of(module).items()),
        structure=structure_of(module),
    )
    found: Any = comfy.sd.VAE.__new__(comfy.sd.VAE)
    vars(found).update(vars(vae))
    found.first_stage_model = RemoteStage(group, ranks, source, module, vae.device)
    found.patcher = RemoteVaePatcher(torch.nn.Module(), load_device=vae.device, offload_device=CPU)
    found.device, found.vae_dtype = CPU, dtype or held
    kept, sharers = vae.model_size(), 1 if kind.tiles else ranks  # rank 0 joins the tiles on its device
    for name in ("memory_used_decode", "memory_used_encode"):  # now of rank 0, on ComfyUI's device
        whole = getattr(vae, name)
        setattr(found, name, lambda shape, dtype, whole=whole: whole(shape, dtype) / sharers + kept)
    for name in () if method.endswith("_tiled") else TILED:
        setattr(found, name, refuse_tiles)
    return found


def file_of(vae: comfy.sd.VAE) -> str:
    """Returns the file that a VAE is from; empty if it names none that ranks can read."""
    init: Any = vae.patcher.cached_patcher_init
    named = init and init[1] and init[0] in [getattr(comfy.sd, name, None) for name in LOADERS]
    path = Path(init[1][0] if named else "")
    return str(path.absolute()) if path.suffix.lower() in SAFETENSORS else ""


def refuse_tiles(*_given: Any, **_options: Any) -> Any:
    """ComfyUI's VAE switches to tiles that nobody asked for if its memory runs out. It computes these itself."""
    raise Refused("ComfyUI's device has no room for its share of the picture, so ComfyUI cuts it into tiles.")


def check_vae(vae: Any) -> VaeClass:
    """Returns the description of a VAE's class. Raises Refused for a VAE that cannot be split over ranks, or that nodes
    have changed, because the ranks would not have the change."""
    if type(vae) is not comfy.sd.VAE and not hasattr(vae, SHARED):
        raise Refused(f"Its VAE is a {type(vae).__name__}, which only the pack knows that made it.")
    if vae.first_stage_model is None:
        raise Refused("ComfyUI finds no VAE in this file.")
    try:
        kind = class_of(vae.first_stage_model)
    except RequestError as error:
        raise Refused(*error.explanation) from error
    if changes := list(list_vae_changes(vae)):
        raise Refused(f"A node has changed the VAE's {', '.join(changes[:3])}, which the ranks would not have.")
    return kind


def list_vae_changes(vae: Any) -> Iterator[str]:
    """Yields the names of what nodes have changed, beside the numbers of weights and the attributes of the VAE's object
    that are no methods: ComfyUI's own object has these."""
    patcher = vae.patcher
    yield from (name for name in PATCHES if getattr(patcher, name, None))
    yield from (name for name in vars(vae) if callable(getattr(comfy.sd.VAE, name, None)))
    for path, part in vae.first_stage_model.named_modules():
        if any(hooks_of(part)):
            yield path or "model"
        for name, value in vars(part).items():
            is_method = callable(getattr(type(part), name, None))
            if is_method or isinstance(value, FUNCTION_TYPES) and not f"{value.__module__}.".startswith(KNOWN):
                yield f"{path} {name}".strip()
