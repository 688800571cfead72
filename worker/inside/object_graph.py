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
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..engine import compat
from ..wire.tree import PLAIN
from .changes import COMFYUI_ATTRIBUTES

# Kinds of objects that can change.
LIST, DICT, SET, OBJECT, FUNCTION, CELL, TENSOR = "list", "dict", "set", "object", "function", "cell", "tensor"
NAMESPACE = "namespace"  # of a module or a class: some of its variables
PATCHER = "patcher"  # ComfyUI's, of a network that is described like any object
# Kinds of encoded values. REF names an object.
REF, TUPLE, PART, CLASS, NAMED, MODULE = "ref", "tuple", "part", "class", "named", "module"
EMPTY_CLASS = "empty class"  # made in a function, of its bases
METHOD, NAMED_TUPLE, DEVICE, MEMBER = "method", "named tuple", "device", "member"
CLASS_METHOD = "class method"  # of a part
ONLY_SLOT = "whole"  # the key of the only slot of a list, a set and a tensor
PAGE = "page"  # of a weight of a network: the file that has it, and its name there
NEW, SLOTS, GONE = "new", "slots", "gone"  # fields of a change
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
    TUPLE: (tuple, list, tuple),
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
Slots = dict[str, tuple[Encoded, Encoded]]  # by key in JSON, a key and its value


@dataclass(eq=False)
class Entry:
    """An object with a name. kind, made: what is needed to make it. slots: as they were looked at last. stays: whether
    what a rank changes of it stays there, because nobody else reads that. network: the name of the patcher whose
    network it is a part of; empty for none. known: by key in JSON, snapshots of the values that the other side has;
    None if it lacks the object. is_told: whether the other side was told of it after it was looked at."""

    value: Any
    kind: str
    made: Encoded = None
    slots: Slots = field(default_factory=dict)
    stays: bool = False
    network: str = ""
    known: dict[str, Any] | None = None
    is_told: bool = False


class Graph:
    """One side's objects. A change of one has its name, the slots that are new or have changed, the keys of those that
    are gone, and how it is made if the other side lacks it."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.names: dict[int, str] = {}

    def add(self, name: str, entry: Entry) -> None:
        self.entries[name] = entry
        self.names[id(entry.value)] = name

    def keep(self, networks: Container[str]) -> None:
        """Forgets all objects that are no part of these networks. "" stands for those of no network."""
        self.entries = {name: each for name, each in self.entries.items() if each.network in networks}
        self.names = {id(each.value): name for name, each in self.entries.items()}

    def compare(self, name: str) -> list[dict[str, Encoded]]:
        """Returns the change of an object since the other side was told of it; none if there is nothing to tell."""
        entry = self.entries[name]
        known = entry.known or {}
        slots = [list(slot) for key, slot in entry.slots.items() if not is_same(known.get(key), slot[1])]
        gone = [json.loads(key) for key in known.keys() - entry.slots.keys()]
        new = {} if entry.known is not None else {NEW: [entry.kind, entry.made, entry.stays, entry.network]}
        entry.is_told = True
        if not (new or slots or gone):
            return []
        entry.known = take_snapshots(entry.slots)
        return [{REF: name, SLOTS: slots, GONE: gone, **new}]

    def set_slots(self, change: Mapping[str, Any]) -> None:
        """Takes over what the other side changed of an object."""
        entry = self.entries[change[REF]]
        known = entry.known = entry.known or {}
        for key, value in change[SLOTS]:
            set_slot(entry.value, entry.kind, self.decode(key), self.decode(value), True)
            if type(key) in PLAIN:
                entry.slots[key_of(key)], known[key_of(key)] = (key, value), key_of(value)
        for key in change[GONE]:
            set_slot(entry.value, entry.kind, self.decode(key), None, False)
            for each in (entry.slots, known):
                each.pop(key_of(key), None)

    def release(self, before: Mapping[str, Any], change: Mapping[str, Any]) -> None:
        """Forgets the tensors that ranks have made and that the changed slots have no more. before: snapshots."""
        keys = [*(key for key, _ in change[SLOTS]), *change[GONE]]
        had = refs_in([json.loads(before[key_of(key)]) for key in keys if key_of(key) in before])
        for name in had - refs_in(change[SLOTS]):
            if name.startswith(OF_RANKS) and name in self.entries:  # two slots may hold one tensor
                self.names.pop(id(self.entries.pop(name).value), None)

    def decode(self, encoded: Encoded) -> Any:
        """Raises ValueError and KeyError for anything that the other side does not encode."""
        if isinstance(encoded, (list, tuple)):
            return [self.decode(item) for item in encoded]
        if not isinstance(encoded, dict):
            return encoded
        ((kind, value),) = encoded.items()
        if kind in VALUES:
            return VALUES[kind][-1](self.decode(value))
        if kind not in self.decoders:
            raise ValueError(f"{kind!r:.100} is not a kind of encoded value")
        return self.decoders[kind](self, value)

    decoders: Mapping[str, Callable[[Any, Any], Any]] = {REF: lambda self, value: self.entries[value].value}


def key_of(encoded: Encoded) -> str:
    return json.dumps(encoded)


def refs_in(encoded: Encoded) -> set[str]:
    """Returns the names in an encoded value."""
    if isinstance(encoded, (list, tuple)):
        return {name for each in encoded for name in refs_in(each)}
    if not isinstance(encoded, dict):
        return set()
    return {encoded[REF]} if REF in encoded else {name for each in encoded.values() for name in refs_in(each)}


def mark_value(value: Encoded) -> str | int:
    """Returns what of a slot's value is compared with later: its text, or how often a tensor was written to."""
    return compat.version_of(value) if isinstance(value, torch.Tensor) else key_of(value)


def take_snapshots(slots: Slots) -> dict[str, Any]:
    """Returns what to compare slots with later. An inference tensor does not count its writes, so it is copied, but for
    weights: nobody writes to them in a sampling."""
    return {
        key: value.clone() if type(value) is torch.Tensor and value.is_inference() else mark_value(value)
        for key, (_, value) in slots.items()
    }


def is_same(snapshot: Any, value: Encoded) -> bool:
    if isinstance(snapshot, torch.Tensor):
        return isinstance(value, torch.Tensor) and snapshot.equal(value)
    return snapshot == mark_value(value)


def only_slot(encoded: Encoded) -> Slots:
    """Returns the slots of an object that has only one."""
    return {key_of(ONLY_SLOT): (ONLY_SLOT, encoded)}


def set_slot(target: Any, kind: str, key: Any, value: Any, present: bool) -> None:
    """Sets a slot of an object, or removes it."""
    if kind == LIST:
        target[:] = value
    elif kind == SET:
        target.clear()
        target.update(value)
    elif kind in (CELL, NAMESPACE, FUNCTION):
        setattr(target, key, value) if present else delattr(target, key)
    else:
        slots = target if kind == DICT else vars(target)
        if present:
            slots[key] = value
        else:
            slots.pop(key, None)
            if isinstance(target, torch.nn.Module) and key in OF_MODULES:
                slots[key] = copy.copy(OF_MODULES[key])


def slots_of(target: Any, kind: str) -> dict[Any, Any]:
    if kind == CELL:
        return {CONTENTS: target.cell_contents} if target != types.CellType() else {}
    if kind in (LIST, SET):
        return {ONLY_SLOT: tuple(target if kind == LIST else sorted(target, key=repr))}
    if kind == DICT:
        return dict(target)
    if kind == FUNCTION:
        return {**vars(target), **{name: getattr(target, name) for name in OF_FUNCTIONS}}
    found = vars(target).items()
    if kind == OBJECT and isinstance(target, torch.nn.Module):
        found = [(name, value) for name, value in found if name not in OF_MODULES or value != OF_MODULES[name]]
        return {name: value for name, value in found if name not in OF_PATCHERS}
    return dict(found)
