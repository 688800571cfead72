"""Compares a model that nodes have had with the same model as its file makes it."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from comfy.supported_models_base import BASE

from ...parallel_backend.compat import buffers_of, hooks_of, parameters_of
from ...worker.inside.changes import COMFYUI_ATTRIBUTES, are_equal
from ..inside.references import find_module_file, is_comfyuis
from ..model.host_file import has_dynamic_vram

# What ComfyUI sets on a model while it uses it. The shapes are of the last latent, since 0.33.
OF_USE = {*COMFYUI_ATTRIBUTES, "current_patcher", "device", "latent_shapes"}
MADE_BY = ("custom_operations", "operations")  # who made the layers, which are compared
CHOSEN = ("dequant_dtype", "patch_dtype")  # settings of ComfyUI-GGUF's layers
NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def find_differences(model: torch.nn.Module, like: torch.nn.Module, but: Collection[str]) -> Iterator[str]:
    """Yields the names of a model's parts and attributes that differ from those of another model of the same file.

    The numbers of weights are not compared. but: the paths that ComfyUI has replaced itself, and will put back.
    """
    parts, others = dict(model.named_modules()), dict(like.named_modules())
    for path in {**others, **parts}:
        if any(path == each or path.startswith(f"{each}.") for each in but):
            continue
        part, other = parts.get(path), others.get(path)
        if part is not None and other is not None and is_same_layer(part, other):
            continue
        if part is None or other is None or kinds(part) != kinds(other) or any(hooks_of(part)):
            yield path or type(model).__name__
            continue
        prefix = f"{path}." if path else ""
        names = (prefix + name for name in differing_attributes(part, other))
        own, theirs = ({**parameters_of(each), **buffers_of(each)} for each in (part, other))
        weights = (
            prefix + name
            for name in {**theirs, **own}
            if not are_alike(own.get(name), theirs.get(name), set()) and not will_be_alike(part, name, theirs)
        )
        yield from (name for name in (*names, *weights) if name not in but)


def will_be_alike(part: torch.nn.Module, name: str, theirs: Mapping[str, torch.Tensor]) -> bool:
    """Whether a weight that is kept in the file's dtype is cast to another model's dtype in each forward, as a ComfyUI
    with dynamic VRAM does."""
    weight, other = getattr(part, name, None), theirs.get(name)
    if not has_dynamic_vram() or weight is None or other is None:
        return False
    return weight.shape == other.shape and other.dtype == getattr(part, f"{name}_comfy_model_dtype", None)


def is_same_layer(part: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether a layer of another class computes the same with the same weights: one of ComfyUI-GGUF's, which unpacks
    them, or beside these one of ComfyUI's own, which casts them in each call."""
    own, theirs = kinds(part), kinds(other)
    if own == theirs or list(filter(is_torchs, own)) != list(filter(is_torchs, theirs)) or any(hooks_of(part)):
        return False
    if any(name.endswith(".GGMLLayer") for name in own):
        return not any(getattr(part, name, None) for name in CHOSEN)
    is_comfyuis_layer = all(name.startswith("comfy.ops.") or is_torchs(name) for name in [*own, *theirs])
    return is_comfyuis_layer and not list(differing_attributes(part, other))


def is_torchs(name: str) -> bool:
    return name.startswith(("torch.", "builtins."))


def differing_attributes(part: torch.nn.Module, other: torch.nn.Module) -> Iterator[str]:
    """Yields a part's attributes that differ. A new one may be a node's own note, so it counts only if code calls it or
    computes with it."""
    own, theirs = vars(part), vars(other)
    for name in {**theirs, **own}:
        value = own.get(name)
        is_more = callable(value) or isinstance(value, torch.Tensor)
        if name in (*OF_USE, *MADE_BY) or not is_more and (name.startswith("_") or name not in theirs):
            continue
        if name not in own or name not in theirs or not are_alike(value, theirs[name], set()):
            yield name


def kinds(value: Any) -> list[str]:
    """The names of a value's class and those that it derives from. ComfyUI makes some classes anew for each model."""
    return [f"{each.__module__}.{each.__qualname__}" for each in type(value).__mro__]


def are_alike(value: Any, other: Any, seen: set[tuple[int, int]]) -> bool:
    """Whether two values are the same but for the numbers of tensors. seen: the pairs that are being compared."""
    if value is other or (id(value), id(other)) in seen:
        return True
    if isinstance(value, NAMED) and isinstance(other, NAMED):
        return (value.__module__, value.__qualname__) == (other.__module__, other.__qualname__)
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return value.shape == other.shape and value.dtype == other.dtype
    if kinds(value) != kinds(other):
        return False
    seen.add((id(value), id(other)))
    if isinstance(value, Mapping):
        own, theirs = ({key: each[key] for key in each if key not in (*OF_USE, *MADE_BY)} for each in (value, other))
        return own.keys() == theirs.keys() and all(are_alike(own[key], theirs[key], seen) for key in own)
    if isinstance(value, (list, tuple)):
        return len(value) == len(other) and all(are_alike(*pair, seen) for pair in zip(value, other, strict=True))
    if isinstance(value, (torch.device, torch.nn.Module)):  # parts are compared by their paths
        return True
    if isinstance(value, BASE) or is_comfyuis(find_module_file(type(value))) and hasattr(value, "__dict__"):
        return are_alike(vars(value), vars(other), seen)
    return are_equal(value, other)
