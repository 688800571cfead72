"""A VAE of ComfyUI's own, from its file or from weights that were sent, by ComfyUI's own detection and classes."""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

from ..errors import ModelFileError
from ..wire.tensors import bytes_of
from .model import META, Weights, dtype_of, import_comfyui, read
from .source import VaeSource

UNFIT = "Error(s) in loading state_dict"  # torch's words
PREFIXES = ("first_stage_model.", "vae.")  # of a VAE's weights in a checkpoint
SET_BY_NODES = ("decode_noise_scale", "decode_timestep")
CODERS = {"decode": "decoder.", "encode": "encoder."}


@dataclass(frozen=True)
class HostVae:
    """vae: ComfyUI's object. missing: names of weights that the file does not have."""

    vae: Any
    missing: tuple[str, ...] = ()

    @property
    def module(self) -> torch.nn.Module:
        return self.vae.first_stage_model

    @property
    def scale(self) -> int:
        """Pixels of a side of a latent's pixel."""
        return self.vae.spacial_compression_decode()

    def lacks(self, direction: str) -> str:
        """The first weight that is not there for it, if one is not."""
        return next((name for name in self.missing if name.startswith(CODERS[direction])), "")


def build_vae(weights: Weights, metadata: dict[str, str] | None, dtype: torch.dtype | None, device: Any) -> HostVae:
    """ComfyUI's VAE of these weights, on the CPU. dtype: None for ComfyUI's choice. device: that it is to run on.

    Raises ModelFileError for weights of no VAE, and for such as do not fit what ComfyUI takes them for.
    """
    import comfy.sd

    found = []
    load_state_dict = torch.nn.Module.load_state_dict

    @functools.wraps(load_state_dict)
    def noted(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        found.append(load_state_dict(module, *args, **kwargs))
        return found[-1]

    try:
        with patch.object(torch.nn.Module, "load_state_dict", noted):
            vae = comfy.sd.VAE(sd=weights, metadata=metadata, dtype=dtype, device=device)
    except (KeyError, IndexError) as error:  # some names of a VAE without the rest of it
        raise ModelFileError(f"ComfyUI does not know what VAE this is: it lacks {error}.") from error
    except RuntimeError as error:
        if UNFIT not in str(error):
            raise
        raise ModelFileError(f"Its weights do not fit the VAE that ComfyUI takes it for: {error}") from error
    if vae.first_stage_model is None:
        raise ModelFileError("ComfyUI knows no VAE in it.", "Choose the file of a VAE.")
    return HostVae(vae, tuple(name for result in found for name in result.missing_keys))


def read_vae(file: str) -> tuple[Weights, dict[str, str]]:
    """A file's weights, or those of the VAE in a checkpoint, and what it says beside them."""
    import comfy.utils

    weights, metadata = read(file)
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in weights):
            weights = comfy.utils.state_dict_prefix_replace(weights, {prefix: ""}, filter_keys=True)
    return weights, metadata or {}


def load_vae(source: VaeSource, weights: Weights, device: torch.device) -> HostVae:
    """In a rank. weights: those that were sent. Raises ModelFileError."""
    import_comfyui(source)
    metadata = dict(source.metadata)
    if source.file:
        weights, metadata = read_vae(source.file)
    vae = build_vae(weights, metadata, dtype_of(source.dtype), device)
    if source.structure and structure_of(vae.module) != source.structure:
        raise ModelFileError(
            f"The ranks make another {type(vae.module).__name__} of these weights than ComfyUI's {source.vae_class}.",
            "Restart ComfyUI; if it comes again, use the stock VAE nodes.",
        )
    vae.module.requires_grad_(False).to(device)
    return vae


def describe_vae(file: str, dtype: torch.dtype | None) -> HostVae:
    """In ComfyUI's process: the VAE of a file, with its weights on the meta device. Raises ModelFileError."""
    weights, metadata = read_vae(file)
    seen = {name: tensor.to(META) for name, tensor in weights.items()}
    try:
        with META:
            return build_vae(seen, metadata, dtype, None)
    except (RuntimeError, NotImplementedError) as error:
        if META.type not in str(error):
            raise
    vae = build_vae(weights, metadata, dtype, None)  # a class that computes from tensors as it is made (Cosmos)
    vae.module.to(META)
    return vae


def chunk_bytes(device: torch.device) -> int:
    """How much of a video LTX's VAE computes at a time on a device."""
    import comfy.ldm.lightricks.vae.causal_video_autoencoder as ltx

    return ltx.get_max_chunk_size(device)


def cut_by(size: int) -> AbstractContextManager[Any]:
    """While entered, in a rank, it computes so much at a time on any device."""
    import comfy.ldm.lightricks.vae.causal_video_autoencoder as ltx

    return patch.object(ltx, "get_max_chunk_size", lambda _device: size)


def weights_of(vae: torch.nn.Module) -> Weights:
    """All that a VAE is told by and made of again; of Cosmos', that is buffers, too, which its files have."""
    return {**dict(vae.named_buffers()), **vae.state_dict()}


def metadata_of(vae: torch.nn.Module) -> dict[str, str]:
    """What its file said beside its weights, of a class that keeps it (LTX), with what nodes have set since."""
    config = getattr(vae, "config", None)
    if not isinstance(config, dict):
        return {}
    return {"config": json.dumps({"vae": {**config, **{name: getattr(vae, name) for name in SET_BY_NODES}}})}


def structure_of(vae: torch.nn.Module) -> str:
    """Tells VAEs apart whose layers are others: their kinds, sizes, strides and paddings."""
    return hashlib.sha256(repr(vae).encode()).hexdigest()


def fingerprint(weights: Weights) -> str:
    """Tells weights from others, by names, shapes, dtypes and the checksums of their bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        checksum = zlib.crc32(bytes_of(tensor).numpy().data)
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {checksum}\n".encode())
    return digest.hexdigest()
