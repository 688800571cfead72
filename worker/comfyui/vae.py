"""Builds a VAE from its file or from sent weights, by ComfyUI's own detection and classes."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch

from ..errors import ModelFileError
from ..wire.tensors import bytes_of
from .model import Weights, dtype_of, import_comfyui, read
from .source import VaeSource

UNFIT = "Error(s) in loading state_dict"  # in torch's message
PREFIXES = ("first_stage_model.", "vae.")  # of the VAE's weights in a checkpoint
SET_BY_NODES = ("decode_noise_scale", "decode_timestep")


def build_vae(weights: Weights, metadata: dict[str, str] | None, dtype: torch.dtype | None, device: Any) -> Any:
    """Builds ComfyUI's VAE from these weights, on the CPU. dtype: None for ComfyUI's choice. device: where it will run.

    Raises ModelFileError if ComfyUI detects no VAE, or if the weights do not fit the VAE that it detects.
    """
    import comfy.sd

    try:
        vae = comfy.sd.VAE(sd=weights, metadata=metadata, dtype=dtype, device=device)
    except (KeyError, IndexError) as error:  # some weights of a known VAE, without the others
        raise ModelFileError(f"ComfyUI cannot tell which VAE this is: {error} is missing.") from error
    except RuntimeError as error:
        if UNFIT not in str(error):
            raise
        raise ModelFileError(f"The weights do not fit the VAE that ComfyUI detects: {error}") from error
    if vae.first_stage_model is None:
        raise ModelFileError("ComfyUI finds no VAE in this file.", "Choose the file of a VAE.")
    return vae


def read_vae(file: str) -> tuple[Weights, dict[str, str]]:
    """Reads the weights of a VAE's file, or of the VAE in a checkpoint, and the file's metadata."""
    import comfy.utils

    weights, metadata = read(file)
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in weights):
            weights = comfy.utils.state_dict_prefix_replace(weights, {prefix: ""}, filter_keys=True)
    return weights, metadata or {}


def load_vae(source: VaeSource, sent: Weights, device: torch.device) -> Any:
    """Loads ComfyUI's VAE in a rank. sent: the weights, if ComfyUI sends them. Else they are read from the file.

    Raises ModelFileError, also if that gives another VAE than ComfyUI's."""
    import_comfyui(source)
    held = source.held or source.dtype
    weights, metadata = (sent, dict(source.metadata)) if sent else read_vae(source.file)
    vae = build_vae(dict(weights), metadata, dtype_of(held), device)
    module = vae.first_stage_model
    is_same = source.structure in ("", structure_of(module))
    if source.fingerprint and not sent:
        found = fingerprint(weights_of(module), dtype_of(held)), metadata_of(module)
        is_same = is_same and found == (source.fingerprint, dict(source.metadata))
    if not is_same:
        raise ModelFileError(
            f"From these weights the ranks build a different {type(module).__name__} than ComfyUI's {source.vae_class}."
        )
    if source.dtype != held:
        vae = build_vae(weights, metadata, dtype_of(source.dtype), device)
    vae.first_stage_model.requires_grad_(False).to(device)
    return vae


def use_chunk_bytes(device: torch.device, agree: Callable[[int], int]) -> AbstractContextManager[Any]:
    """While entered, LTX's VAE in this rank computes as many bytes of a video at a time as all ranks agree on. agree:
    returns that, and gets what it would be on this device."""
    import comfy.ldm.lightricks.vae.causal_video_autoencoder as ltx

    size = agree(ltx.get_max_chunk_size(device))
    return patch.object(ltx, "get_max_chunk_size", lambda _device: size)


def weights_of(vae: torch.nn.Module) -> Weights:
    """Returns all tensors from which ComfyUI detects and builds a VAE again. For Cosmos that includes buffers, which
    its files have."""
    return {**dict(vae.named_buffers()), **vae.state_dict()}


def metadata_of(vae: torch.nn.Module) -> dict[str, str]:
    """Returns the file's metadata if the class keeps it (LTX), with the values that nodes have set since."""
    config = getattr(vae, "config", None)
    if not isinstance(config, dict):
        return {}
    return {"config": json.dumps({"vae": {**config, **{name: getattr(vae, name) for name in SET_BY_NODES}}})}


def structure_of(vae: torch.nn.Module) -> str:
    """Returns a hash of a VAE's layers: their kinds, sizes, strides and paddings."""
    return hashlib.sha256(repr(vae).encode()).hexdigest()


def fingerprint(weights: Weights, dtype: torch.dtype | None = None) -> str:
    """Returns a hash of the names, shapes, dtypes and checksums of weights. dtype: that they are computed with in.
    ComfyUI may keep them in the file's."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        used = tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
        checksum = zlib.crc32(bytes_of(used).cpu().numpy().data)
        digest.update(f"{name} {tuple(used.shape)} {used.dtype} {checksum}\n".encode())
    return digest.hexdigest()
