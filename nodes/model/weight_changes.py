"""Changes of weights by patchers: names the file of each weight of another model, so that the ranks can read it, and
lets ComfyUI read from the module what its weights are with the changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import comfy.lora
import comfy.model_patcher
import torch

from ...parallel_backend.compat import parameters_of
from ...worker.comfyui.merges import PREFIX, MergedWeight
from ...worker.comfyui.patches import patch_weight
from ...worker.comfyui.source import HostSource
from ...worker.wire.tensors import UnsendableError
from .local_weights import CPU, DeferredParameter, LocalWeights, Weight, are_same, join_path

# ComfyUI's list by name: (strength, what to add, strength of the weight itself, (dim, start, length), function).
Patches = Mapping[Any, list[tuple]]
MERGED_ELSEWHERE = (
    "The merge takes weights of a model that is not in the ranks. Put Parallelize Model behind its loader, too."
)
MODEL_AS_LORA = "model_as_lora"  # ComfyUI's kind of change by another model's weight, less this one's
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
    values than a file of a parallel model."""
    return {name: [name_file(change) for change in changes] for name, changes in patches.items()}


def name_file(change: tuple) -> tuple:
    strength, value, *rest = change
    if not isinstance(value, list):
        return change
    (tensor, convert), *changes = value
    weight = tensor.weight if isinstance(tensor, DeferredParameter) else None
    if weight is None or not convert.__module__.startswith(COMFYUI):
        raise UnsendableError(MERGED_ELSEWHERE)
    if weight.weights.is_changed or isinstance(weight, PatchedWeight):
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


class PatchedWeight(Weight):
    """A weight of a module with changes. Its numbers are those that ComfyUI's patcher makes."""

    def __init__(self, weights: LocalWeights, name: str, changes: list[tuple]) -> None:
        super().__init__(weights, name)
        self.changes = changes

    def find_numbers(self) -> torch.Tensor:
        model, key = torch.nn.Module(), PREFIX + self.name
        model.diffusion_model = self.weights.map_file()
        patcher = comfy.model_patcher.ModelPatcher(model, CPU, CPU)
        patcher.patches = {key: self.changes}
        return patch_weight(patcher, key, super().find_numbers(), CPU)


class PatchedWeights(LocalWeights):
    """Weights that the module shows with a patcher's changes while the ranks have them, as ComfyUI's patcher would.

    patched: the names of the weights that ComfyUI patches when it loads a model. Hooks change others, too.
    on_show: called with the module's weights that are others now, by name.
    """

    on_show: Callable[[Mapping[str, Any]], None]

    def __init__(self, module: torch.nn.Module, source: HostSource) -> None:
        super().__init__(module, source)
        self.patched = {
            f"{PREFIX}{join_path(path, name)}"
            for path, part in self.parts.items()
            for name, _ in part.named_parameters(recurse=False)
            if not any(list(child.parameters()) for child in part.children())
        }

    def keep_patched(self, patches: Patches) -> Patches:
        """Returns the changes of those weights that ComfyUI patches when it loads a model."""
        return {name: changes for name, changes in patches.items() if name in self.patched}

    def name_originals(self, patches: Patches, originals: Mapping[str, list]) -> dict[str, list]:
        """Returns the changes of hooks, in which a model as LoRA is a merge's change that names this model's weight.
        Leaves out what only hooks change, such as a table of positions, if the other model has the same numbers.
        originals: the model's own list for merges."""
        found = {}
        for name, changes in patches.items():
            if name in self.patched:
                found[name] = [as_difference(each, originals[name][0]) for each in changes]
            elif not (name in originals and all(self.is_same(name, each) for each in changes)):
                found[name] = changes
        return found

    def is_same(self, name: str, change: tuple) -> bool:
        if not is_model_as_lora(change) or not name.startswith(PREFIX):
            return False
        _, (other,) = change[1]
        return are_same(other.cpu(), self.read(name.removeprefix(PREFIX)).cpu(), None)

    def show(self, patches: Patches) -> None:
        """Puts the weights with these changes into the module, and no others. Leaves those that a node has replaced. Of
        quantised weights, it shows those whose shape changes."""
        shown = {}
        for key, changes in patches.items():
            name = key.removeprefix(PREFIX)
            empty = self.empty_of(name)
            shape = comfy.lora.calculate_shape(changes, empty, key) if isinstance(empty, torch.nn.Parameter) else None
            if shape and (isinstance(empty, DeferredParameter) or shape != empty.shape):
                shown[name] = self.without_numbers(name, torch.empty(shape, dtype=empty.dtype, device="meta"))
                shown[name].weight = PatchedWeight(self, name, changes)
        own = {name: shown.get(name, self.empty_of(name)) for name in {**self.shown, **shown}}
        for name, weight in own.items():
            before = self.put(name, weight)
            if before is not self.own_weight(name):
                self.put(name, before)
        self.shown = shown
        if own:
            self.on_show(own)

    def put(self, name: str, weight: Any) -> Any:
        """Puts a weight into the module, and returns what was there."""
        path, _, own = name.rpartition(".")
        slots = parameters_of(self.parts[path])
        before, slots[own] = slots[own], weight
        return before

    def take_replaced(self) -> dict[str, Any]:
        """Puts the weights with changes back where nodes have replaced them. Returns the nodes' weights, and those that
        nodes have written over."""
        before = {name: (self.put(name, weight), weight) for name, weight in self.shown.items()}
        return {name: weight for name, (weight, own) in before.items() if weight is not own or own.weight.is_written}

    def put_replaced(self, weights: Mapping[str, Any]) -> None:
        for name, weight in weights.items():
            self.put(name, weight)
        self.put_numbers()

    def bring(self) -> None:
        self.show({})
        super().bring()
