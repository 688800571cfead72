"""Describes functions and objects as data, for as long as a sampling lasts: ComfyUI's process and a rank each hold the
same graph of objects, by name, and tell each other what changed in it.

An object that can change has a name and slots: the keys of a dict, the attributes of an object, the cells of a
function. A description has the slots that changed since the last one. So what a function keeps from call to call stays
in the ranks, and what a node changes in between reaches them.
"""

from __future__ import annotations

import collections
import json
import types
from functools import cache
from typing import Any, NamedTuple

import torch

from . import tags
from .changes import COMFYUIS

HOSTS = {"cpu": torch.device("cpu")}  # by type, the devices that a rank has, too; of others it has its own
DICTS = (dict, collections.OrderedDict, collections.defaultdict)
BUILT_IN = (list, dict, set, tuple, str, int, float)  # a class of a pack's that is one of these
# Attributes of a network that its patcher sets. A rank's own patcher sets others.
OF_PATCHERS = (
    *("device", "model_loaded_weight_memory", "lowvram_patch_counter", "model_lowvram", "current_weight_patches_uuid"),
    *("model_offload_buffer_memory", "dynamic_vbars", "dynamic_pins", "dynamic_patchers"),
    *(name for name in COMFYUIS if name != "training"),
)
MODEL = "model"  # of a patcher
Encoded = Any  # JSON, with tensors in it
State = dict[str, dict[str, Any]]


class Entry(NamedTuple):
    """An object with a name. kind, made: what is needed to make it. slots: by key in JSON, its key and value.
    keeps_tensors: whether tensors that a rank puts into it stay there, because nobody else reads them."""

    kind: str
    made: Encoded
    slots: dict[str, tuple[Encoded, Encoded]]
    keeps_tensors: bool = False


class Version(NamedTuple):
    """A snapshot of a tensor. version: how often it was written to. copy: the values that were sent, for an inference
    tensor, which does not count its writes."""

    tensor: torch.Tensor
    version: int
    copy: torch.Tensor | None = None

    def kept(self) -> Version:
        """Returns what to compare with later. Weights are not copied: nobody writes to them in a sampling."""
        is_weight = isinstance(self.tensor, torch.nn.Parameter)
        return self if is_weight or not self.tensor.is_inference() else self._replace(copy=self.tensor.clone())

    def differs(self, now: Version) -> bool:
        is_same = self.tensor is now.tensor and self.version == now.version
        return not is_same or (self.copy is not None and not self.copy.equal(now.tensor))


def key_of(encoded: Encoded) -> str:
    return json.dumps(encoded)


def whole(encoded: Encoded) -> dict[str, tuple[Encoded, Encoded]]:
    """Returns the slots of an object that has only one."""
    return {key_of(tags.WHOLE): (tags.WHOLE, encoded)}


def differs(before: str | Version, now: Encoded) -> bool:
    """Whether a value is another than before, see `kept`."""
    return before.differs(now) if isinstance(before, Version) else before != key_of(now)


def kept(slots: dict[str, tuple[Encoded, Encoded]]) -> dict[str, str | Version]:
    """Returns what to compare slots with later: their values' versions or texts."""
    return {key: value.kept() if isinstance(value, Version) else key_of(value) for key, (_, value) in slots.items()}


def refs_in(encoded: Encoded) -> list[str]:
    """Returns the names in an encoded value."""
    if isinstance(encoded, (list, tuple)):
        return [name for each in encoded for name in refs_in(each)]
    if not isinstance(encoded, dict):
        return []
    return [encoded[tags.REF]] if tags.REF in encoded else [name for each in encoded.values() for name in refs_in(each)]


def has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") or bool(slot_names(type(value)))


@cache
def slot_names(cls: type) -> list[str]:
    """Returns the attributes that a class has in `__slots__`."""
    found = [vars(each) for each in cls.__mro__ if "__slots__" in vars(each)]
    return [name for each in found for name, value in each.items() if isinstance(value, types.MemberDescriptorType)]


def set_slot(target: Any, kind: str, key: Any, value: Any, present: bool) -> None:
    """Sets a slot of an object, or removes it."""
    if kind == tags.CELL:
        if present:
            target.cell_contents = value
        else:
            del target.cell_contents
    elif kind == tags.LIST:
        target[:] = value
    elif kind == tags.SET:
        target.clear()
        target.update(value)
    elif kind == tags.NAMESPACE:
        setattr(target, key, value) if present else delattr(target, key)
    elif kind == tags.OBJECT and key in slot_names(type(target)):
        object.__setattr__(target, key, value) if present else object.__delattr__(target, key)
    else:
        slots = target if kind == tags.DICT else vars(target)
        if present:
            slots[key] = value
        else:
            slots.pop(key, None)


def slots_of(target: Any, kind: str) -> dict[Any, Any]:
    if kind == tags.CELL:
        try:
            return {tags.WHOLE: target.cell_contents}
        except ValueError:
            return {}
    if kind in (tags.LIST, tags.SET):
        return {tags.WHOLE: list(target) if kind == tags.LIST else sorted(target, key=repr)}
    if kind in (tags.TENSOR, tags.LOADED):
        return {}
    if kind == tags.DICT:
        return dict(target)
    if kind == tags.PATCHER:
        return {MODEL: target.model}
    names = slot_names(type(target)) if kind == tags.OBJECT else []
    found = {name: getattr(target, name) for name in names if hasattr(target, name)} | getattr(target, "__dict__", {})
    is_network = kind == tags.OBJECT and isinstance(target, torch.nn.Module)
    return {name: value for name, value in found.items() if name not in OF_PATCHERS} if is_network else found
