"""Changes of weights by another model's: finds the file of each, so that the ranks can read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...worker.comfyui.patches import PREFIX
from ...worker.comfyui.source import HostSource
from ...worker.wire.tensors import UnsendableError
from .deferred_weight import DeferredParameter

# ComfyUI's list by name: (strength, what to add, strength of the weight itself, (dim, start, length), function).
Patches = Mapping[Any, list[tuple]]
MERGED_ELSEWHERE = (
    "The merge takes weights of a model that is not in the ranks. Put Parallelize Model behind its loader, too."
)
MODEL_AS_LORA = "model_as_lora"  # ComfyUI's kind of change by another model's weight, less this one's
COMFYUI_MODULES = "comfy."  # ComfyUI's modules, whose functions make numbers of a weight


def find_merged(value: list) -> tuple[HostSource, str, list[tuple]]:
    """Returns the file, the name and the changes of another model's weight in a merge. Raises UnsendableError if it has
    other values than a file of a parallel model."""
    (tensor, convert), *changes = value
    weight = tensor.weight if isinstance(tensor, DeferredParameter) else None
    if weight is None or not convert.__module__.startswith(COMFYUI_MODULES):
        raise UnsendableError(MERGED_ELSEWHERE)
    if weight.weights.is_changed or weight.changes:
        raise UnsendableError("The merge takes weights that a node has written over.")
    return weight.weights.source, f"{PREFIX}{weight.name}", changes


def as_difference(change: tuple, original: tuple) -> tuple:
    """Returns a change by a model as LoRA as a merge's change: another model's weight, less this one's. Others stay as
    they are. original: this one's weight, and the function that makes numbers of it."""
    strength, value, *rest = change
    if not is_model_as_lora(change):
        return change
    _, (other,) = value
    return (strength, [original, (1.0, ("diff", (other,)), -1.0, None, None)], *rest)


def is_model_as_lora(change: tuple) -> bool:
    return isinstance(change[1], tuple) and change[1][0] == MODEL_AS_LORA
