"""Describes a single-file checkpoint from its header: the original layouts and diffusers' own.

What is in the file is for ComfyUI to detect, as its stock loader does; `single_file_layouts` has what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import comfy.model_detection
import comfy.supported_models_base
import torch

from ..parallel_backend.errors import ModelFileError
from ..parallel_backend.loading import TensorSlice
from .model_files import ModelFolder, main_dtype, read_header
from .single_file_layouts import LAYOUTS, PIXART, Layout, Table

Header = dict[str, torch.Tensor]

PIXART_KEYS = {"adaln_single.emb.timestep_embedder.linear_1.bias", "caption_projection.linear_1.weight"}
# Models that ComfyUI takes for a supported one, or for none, by how a name begins that only they have.
OTHERS = {
    "controlnet_": "a ControlNet",
    "distilled_guidance_layer.": "Chroma",
    "double_stream_modulation_img.": "Flux.2",
}
HOST_NAMES = {"FluxInpaint": "Flux.1 Fill"}
SCALES = (".scale_weight", ".weight_scale")  # of fp8 weights: the name of old, and ComfyUI's


def describe_file(path: Path) -> tuple[ModelFolder, dict[str, TensorSlice]]:
    """The model in a file as a diffusers folder would describe it, and where its parameters lie in the file.

    Raises ModelFileError for a file that is broken, holds another model, or is quantised otherwise than to fp8.
    """
    header = read_header(path)
    prefix = comfy.model_detection.unet_prefix_from_state_dict(header)
    if not any(name.startswith(prefix) for name in header):
        prefix = ""
    weights = {name.removeprefix(prefix): tensor for name, tensor in header.items() if name.startswith(prefix)}
    refuse_quantised(path.name, weights)
    layout, detected, table = recognise(path.name, weights)
    places = {name: place(entry, weights, prefix) for name, entry in table.items()}
    shapes = {name: shape_at(found, header) for name, found in places.items() if found.name in header}
    folder = ModelFolder(
        model_class=layout.model_class,
        config=layout.config(detected, shapes),
        files=(str(path),),
        dtype=main_dtype(weights),
        shapes=shapes,
    )
    return folder, places


def shape_at(place: TensorSlice, header: Header) -> torch.Size:
    tensor = header[place.name]
    return tensor.shape if place.length is None else tensor[place.start :][: place.length].shape


def recognise(file: str, weights: Header) -> tuple[Layout, Mapping[str, Any], Table]:
    """The family, what ComfyUI detects of it, and the parameters' places by diffusers' names. Raises ModelFileError."""
    for start, kind in OTHERS.items():
        if any(name.startswith(start) for name in weights):
            raise unsupported(file, kind)
    if weights.keys() >= PIXART_KEYS:  # ComfyUI would take these for PixArt of the published width
        return PIXART, {}, {name: name for name in weights}
    config, has_diffusers_names = detect(weights)
    if config is None:
        raise unsupported(file, "of a kind that ComfyUI does not know")
    layout, detected = LAYOUTS.get(type(config)), config.unet_config
    if layout is None:
        kind = type(config).__name__
        raise unsupported(file, HOST_NAMES.get(kind, kind))
    if other := layout.other(detected):
        raise unsupported(file, other)
    if has_diffusers_names:
        return layout, detected, {name: name for name in weights}
    width = weights["x_embedder.proj.weight"].shape[0] if layout is PIXART else None
    return layout, detected, layout.table(detected, width)


def detect(weights: Header) -> tuple[comfy.supported_models_base.BASE | None, bool]:
    """What ComfyUI's own loader detects, in its order, and whether the names are diffusers'."""
    try:
        if config := comfy.model_detection.model_config_from_unet(dict(weights), ""):
            return config, False
        converted = comfy.model_detection.convert_diffusers_mmdit(dict(weights), "")
        return comfy.model_detection.model_config_from_unet(converted, "") if converted else None, True
    except (KeyError, RuntimeError):  # some names and shapes of a known model without the rest of it
        return None, False


def unsupported(file: str, kind: str) -> ModelFileError:
    return ModelFileError(
        f"{file} is {kind}; single files are supported for PixArt, SD3, SD3.5, and Flux.1 dev and schnell. "
        "Use ComfyUI's own loader for this one."
    )


def place(entry: str | tuple, weights: Header, prefix: str) -> TensorSlice:
    """An entry of a table as a place in the file; the only change in ComfyUI's tables is `swap_scale_shift`."""
    name, cut, *change = (entry, None) if isinstance(entry, str) else entry
    _dim, start, length = cut or (0, 0, None)
    layer = name.removesuffix(".weight")
    if name not in weights and f"{layer}.scale" in weights:  # a norm, in the first files of Flux
        name = f"{layer}.scale"
    scale = next((prefix + layer + end for end in SCALES if layer + end in weights), None)
    return TensorSlice(prefix + name, start, length, bool(change), scale)


def refuse_quantised(file: str, weights: Header) -> None:
    """Raises ModelFileError for weights that are not floats, and for scales that are not of whole tensors."""
    integers = any(name.endswith(".weight") and not tensor.is_floating_point() for name, tensor in weights.items())
    scales = any(name.endswith(SCALES) and tensor.numel() != 1 for name, tensor in weights.items())
    if integers or scales:
        raise ModelFileError(
            f"{file} holds quantised weights, of which only fp8 with one scale a tensor is supported; "
            "use the model's fp8, fp16 or bf16 file, or ComfyUI's own loader."
        )
