"""Describes a single-file checkpoint from its header: the original layouts and diffusers' own.

What is in the file is for ComfyUI to detect, as its stock loader does; `families` has what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfy.model_detection
import comfy.supported_models_base
import torch

from ...parallel_backend.errors import ModelFileError
from ...parallel_backend.weights.loading import SCALES, TensorSlice
from ...worker.comfyui.model import is_gguf
from .families import Layout, Table, detected_as, families, pixart
from .model_files import ModelDescription, main_dtype, read_header

Header = dict[str, torch.Tensor]

PIXART_KEYS = {
    "adaln_single.emb.timestep_embedder.linear_1.bias",
    "caption_projection.linear_1.weight",
    "pos_embed.proj.weight",
}
# Models that ComfyUI takes for a supported one by how a name begins that only they have.
OTHERS = {"controlnet_": "a ControlNet"}


class UnknownFile(ModelFileError):
    """A file of which nothing is known here; ComfyUI may know it."""


def describe_file(path: Path) -> ModelDescription:
    """The model in a file as a diffusers folder would describe it, and where its parameters lie in the file.

    Raises ModelFileError for a file that is broken, and UnknownFile for one that holds another model, or is quantised
    otherwise than to fp8.
    """
    if is_gguf(path):
        raise UnknownFile(f"{path.name} is a GGUF file.", "ComfyUI's own class runs it.")
    header, metadata = read_header(path)
    prefix = comfy.model_detection.unet_prefix_from_state_dict(header)
    if not any(name.startswith(prefix) for name in header):
        prefix = ""
    weights = {name.removeprefix(prefix): tensor for name, tensor in header.items() if name.startswith(prefix)}
    refuse_quantised(path.name, weights)
    common = {
        "files": (str(path),),
        "dtype": main_dtype(weights),
        "scaled": any(name.endswith(SCALES) for name in weights),
    }
    for start, kind in OTHERS.items():
        if any(name.startswith(start) for name in weights):
            raise ModelFileError(f"{path.name} is {kind}.", "Load it with the node for these.")
    if weights.keys() >= PIXART_KEYS:  # ComfyUI would take these for PixArt of the published width
        own_names: Table = {name: name for name in weights}
        return described("PixArtTransformer2DModel", pixart.LAYOUT, {}, own_names, weights, prefix, common)
    found, has_diffusers_names = detect(weights, metadata)
    if found is None:
        raise unsupported(path.name, "of a kind that ComfyUI does not know")
    family = detected_as(type(found))
    if family is None or family.layout is None:
        raise unsupported(path.name, f"a model that ComfyUI calls {type(found).__name__}")
    layout = family.layout
    if other := layout.other(found.unet_config):
        raise unsupported(path.name, other)
    if has_diffusers_names:
        table: Table = {name: name for name in weights}
    elif layout.table:
        projection = weights.get("x_embedder.proj.weight")  # PixArt's width is this, and is not detected
        table = layout.table(found.unet_config, 0 if projection is None else len(projection))
    else:
        return left_to_the_ranks(family.model_class, layout, found, weights, prefix, common)
    return described(family.model_class, layout, found.unet_config, table, weights, prefix, common)


def described(
    model_class: str,
    layout: Layout,
    detected: Mapping[str, Any],
    table: Table,
    weights: Header,
    prefix: str,
    common: dict[str, Any],
) -> ModelDescription:
    """A model whose parameters are where a table says."""
    places = {name: place(entry, weights) for name, entry in table.items()}
    shapes = {name: shape_at(found, weights) for name, found in places.items() if found.name in weights}
    names = {name: replace(found, name=prefix + found.name) for name, found in places.items()}
    config = layout.config(detected, shapes)
    return ModelDescription(model_class, config, shapes=shapes, names=names, **common)


def left_to_the_ranks(
    model_class: str,
    layout: Layout,
    found: comfy.supported_models_base.BASE,
    weights: Header,
    prefix: str,
    common: dict[str, Any],
) -> ModelDescription:
    """A model whose parameters the ranks find by diffusers' converter."""
    config = layout.config(found.unet_config, {name: tensor.shape for name, tensor in weights.items()})
    file_names = {id(tensor): prefix + name for name, tensor in weights.items()}
    own = found.process_unet_state_dict(dict(weights))
    own = {name: tensor for name, tensor in own.items() if id(tensor) in file_names}
    return ModelDescription(
        model_class,
        config,
        shapes={name: tensor.shape for name, tensor in own.items()},
        prefix=prefix,
        tensors={name: file_names[id(tensor)] for name, tensor in own.items()},
        detected=dict(found.unet_config),
        **common,
    )


def shape_at(place: TensorSlice, weights: Header) -> torch.Size:
    tensor = weights[place.name]
    return tensor.shape if place.length is None else tensor[place.start :][: place.length].shape


def detect(weights: Header, metadata: Mapping[str, str]) -> tuple[comfy.supported_models_base.BASE | None, bool]:
    """What ComfyUI's own loader detects, in its order, and whether the names are diffusers'."""
    try:
        if config := comfy.model_detection.model_config_from_unet(dict(weights), "", metadata=metadata or None):
            return config, False
        converted = comfy.model_detection.convert_diffusers_mmdit(dict(weights), "")
        return comfy.model_detection.model_config_from_unet(converted, "") if converted else None, True
    except (KeyError, RuntimeError):  # some names and shapes of a known model without the rest of it
        return None, False


def unsupported(file: str, kind: str) -> UnknownFile:
    titles = sorted(family.layout.title for family in families() if family.layout)
    return UnknownFile(
        f"{file} is {kind}; single files are supported for {', '.join(titles)}.",
        "Use ComfyUI's own loader for this one.",
    )


def place(entry: str | tuple, weights: Header) -> TensorSlice:
    """An entry of a table as a place in the file; the only change in ComfyUI's tables is `swap_scale_shift`."""
    name, cut, *change = (entry, None) if isinstance(entry, str) else entry
    _dim, start, length = cut or (0, 0, None)
    if name not in weights and name.replace(".weight", ".scale") in weights:  # a norm, in the first files of Flux
        name = name.replace(".weight", ".scale")
    return TensorSlice(name, start, length, bool(change))


def refuse_quantised(file: str, weights: Header) -> None:
    """Raises UnknownFile for weights that are not floats, and for scales that are not of whole tensors."""
    integers = any(name.endswith(".weight") and not tensor.is_floating_point() for name, tensor in weights.items())
    scales = any(name.endswith(SCALES) and tensor.numel() != 1 for name, tensor in weights.items())
    if integers or scales:
        raise UnknownFile(
            f"{file} holds quantised weights, of which only fp8 with one scale a tensor is supported.",
            "Use the model's fp8, fp16 or bf16 file, or ComfyUI's own loader.",
        )
