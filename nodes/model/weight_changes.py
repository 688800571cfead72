"""Changes of weights by patchers: names the file of each weight of another model, so that the ranks can read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...worker.comfyui.merges import PREFIX, MergedWeight
from ...worker.wire.tensors import UnsendableError
from .deferred_weight import DeferredParameter

# ComfyUI's list by name: (strength, what to add, strength of the weight itself, (dim, start, length), function).
Patches = Mapping[Any, list[tuple]]
MERGED_ELSEWHERE = (
    "The merge takes weights of a model that is not in the ranks. Put Parallelize Model behind its loader, too."
)
MODEL_AS_LORA = "model_as_lora"  # ComfyUI's kind of change by another model's weight, less this one's
COMFYUI_MODULES = "comfy."  # ComfyUI's modules, whose functions make numbers of a weight


def name_files(patches: Patches) -> Patches:
    """Returns the changes with a MergedWeight for each weight of another model. Raises UnsendableError if one has other
    values than a file of a parallel model."""
    return {name: [name_file(change) for change in changes] for name, changes in patches.items()}


def name_file(change: tuple) -> tuple:
    strength, value, *rest = change
    if not isinstance(value, list):
        return change
    (tensor, convert), *changes = value
    weight = tensor.weight if isinstance(tensor, DeferredParameter) else None
    if weight is None or not convert.__module__.startswith(COMFYUI_MODULES):
        raise UnsendableError(MERGED_ELSEWHERE)
    if weight.weights.is_changed or weight.changes:
        raise UnsendableError("The merge takes weights that a node has written over.")
    merged = MergedWeight(weight.weights.source, f"{PREFIX}{weight.name}", [name_file(each) for each in changes])
    return (strength, merged, *rest)


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
