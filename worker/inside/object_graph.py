"""Describes functions and objects as data, for as long as a sampling lasts: ComfyUI's process and a rank each hold the
same graph of objects, by name, and tell each other what changed in it. Networks stay for the next sampling, too.

An object that can change has a name and slots: the keys of a dict, the attributes of an object, the cells of a
function. A description has the slots that changed since the last one. So what a function keeps from call to call stays
in the ranks, and what a node changes in between reaches them.
"""

from __future__ import annotations

import collections
import copy
import functools
import json
import types
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from . import tags
from .changes import COMFYUI_ATTRIBUTES

OF_RANKS = "rank."  # how the names of tensors begin that ranks have made
DICTS = {each.__name__: each for each in (dict, collections.OrderedDict, collections.defaultdict)}
# Attributes of a network that its patcher sets. A rank's own patcher sets others.
OF_PATCHERS = (
    *("device", "model_loaded_weight_memory", "lowvram_patch_counter", "model_lowvram", "current_weight_patches_uuid"),
    *("model_offload_buffer_memory", "dynamic_vbars", "dynamic_pins", "dynamic_patchers"),
    *(name for name in COMFYUI_ATTRIBUTES if name != "training"),
)
MODEL = "model"  # of a patcher
OF_MODULES = vars(torch.nn.Module())  # what each module has from the start, such as dicts for hooks
CONTENTS = "cell_contents"  # of a cell
OF_FUNCTIONS = ("__defaults__", "__kwdefaults__")
# Values that cannot change, by their tag: the class, what such a value is made from, and what makes it.
VALUES: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    tags.TUPLE: (tuple, list, tuple),
    "frozen set": (frozenset, lambda value: sorted(value, key=repr), frozenset),
    "size": (torch.Size, list, torch.Size),
    "slice": (slice, lambda value: [value.start, value.stop, value.step], lambda parts: slice(*parts)),
    "dtype": (torch.dtype, lambda value: str(value).removeprefix("torch."), lambda name: getattr(torch, name)),
    "uuid": (uuid.UUID, lambda value: value.hex, uuid.UUID),
    "partial": (
        functools.partial,
        lambda value: [value.func, value.args, *value.keywords.items()],
        lambda parts: functools.partial(parts[0], *parts[1], **dict(parts[2:])),
    ),
}
TAGS = {cls: tag for tag, (cls, *_) in VALUES.items()}
Encoded = Any  # JSON, with tensors in it
State = dict[str, dict[str, Any]]


class Entry(NamedTuple):
    """An object with a name. kind, made: what is needed to make it. slots: by key in JSON, its key and value.
    stays: whether what a rank changes of it stays there, because nobody else reads that. network: the name of the
    patcher whose network it is a part of; empty for none."""

    kind: str
    made: Encoded
    slots: dict[str, tuple[Encoded, Encoded]]
    stays: bool = False
    network: str = ""


def key_of(encoded: Encoded) -> str:
    return json.dumps(encoded)


def replaced_tensors(before: Encoded, now: Encoded) -> set[str]:
    """Returns the names of the ranks' own tensors that a slot had before and has no more."""
    return {name for name in refs_in(before) if name.startswith(OF_RANKS)} - refs_in(now)


def refs_in(encoded: Encoded) -> set[str]:
    """Returns the names in an encoded value."""
    if isinstance(encoded, (list, tuple)):
        return {name for each in encoded for name in refs_in(each)}
    if not isinstance(encoded, dict):
        return set()
    return {encoded[tags.REF]} if tags.REF in encoded else {name for each in encoded.values() for name in refs_in(each)}


def set_slot(target: Any, kind: str, key: Any, value: Any, present: bool) -> None:
    """Sets a slot of an object, or removes it."""
    if kind == tags.LIST:
        target[:] = value
    elif kind == tags.SET:
        target.clear()
        target.update(value)
    elif kind in (tags.CELL, tags.NAMESPACE, tags.FUNCTION):
        setattr(target, key, value) if present else delattr(target, key)
    else:
        slots = target if kind == tags.DICT else vars(target)
        if present:
            slots[key] = value
        else:
            slots.pop(key, None)
            if isinstance(target, torch.nn.Module) and key in OF_MODULES:
                slots[key] = copy.copy(OF_MODULES[key])


def slots_of(target: Any, kind: str) -> dict[Any, Any]:
    if kind == tags.CELL:
        return {CONTENTS: target.cell_contents} if target != types.CellType() else {}
    if kind in (tags.LIST, tags.SET):
        return {tags.ONLY_SLOT: tuple(target if kind == tags.LIST else sorted(target, key=repr))}
    if kind == tags.DICT:
        return dict(target)
    if kind == tags.FUNCTION:
        return {**vars(target), **{name: getattr(target, name) for name in OF_FUNCTIONS}}
    found = vars(target).items()
    if kind == tags.OBJECT and isinstance(target, torch.nn.Module):
        found = [(name, value) for name, value in found if name not in OF_MODULES or value != OF_MODULES[name]]
        return {name: value for name, value in found if name not in OF_PATCHERS}
    return dict(found)
