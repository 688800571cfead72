"""Model merges: names the file of each weight of another model, so that the ranks can read it."""

from __future__ import annotations

import torch

from ...worker.comfyui.merges import PREFIX, MergedWeight
from ...worker.wire.tensors import UnsendableError
from .local_weights import DeferredParameter
from .remote_weights import Patches

MERGED_ELSEWHERE = (
    "The merge takes weights of a model from another loader. Load that, too, by Load Diffusion Model (Parallel)."
)
COMFYUI = "comfy."  # ComfyUI's modules, whose functions make numbers of a weight


class WeightNames:
    """The names in a module's `state_dict`, one by one. A merge of n weights calls ComfyUI's `add_patches` n times, and
    each call looks for one name: for it alone, the layer that has the weight is asked."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def __contains__(self, name: str) -> bool:
        path, _, own = name.rpartition(".")
        try:
            layer = self.module.get_submodule(path)
        except AttributeError:
            return False
        return own in type(layer).state_dict(layer)


def name_files(patches: Patches) -> Patches:
    """Returns the changes with a MergedWeight for each weight of another model. Raises UnsendableError if one has other
    values than a file of our loader."""
    return {name: [name_file(change) for change in changes] for name, changes in patches.items()}


def name_file(change: tuple) -> tuple:
    strength, value, *rest = change
    if not isinstance(value, list):
        return change
    (tensor, convert), *changes = value
    weight = tensor.weight if isinstance(tensor, DeferredParameter) else None
    if weight is None or not convert.__module__.startswith(COMFYUI):
        raise UnsendableError(MERGED_ELSEWHERE)
    if weight.weights.is_changed:
        raise UnsendableError("The merge takes weights that a node has written over.")
    merged = MergedWeight(weight.weights.source, f"{PREFIX}{weight.name}", [name_file(each) for each in changes])
    return (strength, merged, *rest)
