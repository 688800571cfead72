"""At every call, compares a model's module with what it was when it was loaded: its parts, their classes, and the
functions that their code calls.

Node packs change attributes, methods, blocks, hooks and weights, often only for one call. They also replace functions
of ComfyUI for every model.
"""

from __future__ import annotations

import enum
import importlib
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import torch

from ...parallel_backend.compat import buffers_of, hooks_of, parameters_of, parts_of, version_of
from ...worker.inside import changes as kinds
from ...worker.inside.changes import are_equal
from ...worker.wire.tree import PLAIN
from .references import find_module_file, is_code, is_comfyuis, is_foreign, is_not_torchs

WEIGHTS = "weights"
# They choose devices and memory, and not what is computed. Packs for several devices replace their functions.
OF_DEVICES = (
    *("comfy.model_management", "comfy.memory_management", "comfy.pinned_memory"),
    *("comfy.cli_args", "comfy.internal_logging"),
)
# Functions that models' code names in modules of which it imports nothing: `comfy.ldm.common_dit.pad_to_patch_size(…)`.
NAMED = {
    "comfy.ldm.common_dit": ("pad_to_patch_size", "rms_norm"),
    "comfy.ldm.modules.attention": ("optimized_attention",),
    "comfy.rmsnorm": ("rms_norm",),
    "comfy.utils": ("common_upscale", "repeat_to_batch_size"),
}
TORCH: tuple[types.ModuleType, ...] = (torch, torch.nn.functional)
COMPUTING = (*dir(torch.Tensor), *torch.functional.__all__, "cat", "concat", "stack")  # functions in torch itself
CLASS = "__class__"
FOREIGN = object()  # in place of code that a node pack replaced before the model was loaded
# Methods that only new objects run. torch.compile replaces those of all modules.
OF_NEW_OBJECTS = ("__init__", "__setstate__")


class Watched(NamedTuple):
    """A dict that a node may change. now: it. before: a copy of it. path: goes before the names of its keys. kind:
    which changes matter. owner: the part, class or Python module that has it. names: the only keys that matter, empty
    if all do; of attributes, those that were there. key: in a change, what has changed."""

    now: Any
    before: Any
    path: str
    kind: str
    owner: Any
    names: frozenset[str] = frozenset()
    key: Any = ""

    @property
    def name(self) -> str:
        """What has changed, in words."""
        return (self.path.rstrip(".") or "the model") if self.kind in kinds.HOOKS else f"{self.path}{self.key}"


class ModuleGuard:
    """Remembers what a module is made of.

    Most calls change nothing. Then one comparison of two lists of dicts is enough, and it is fast because Python
    compares values by identity first. Only in dicts that differ does it look for the names.
    """

    def __init__(self, module: torch.nn.Module, own: Collection[str], take_back_copies: Callable[[], None]) -> None:
        """own: names of attributes that the stand-in has put on the module. take_back_copies: puts the module's weights
        where nodes have put copies of them."""
        self.take_back_copies = take_back_copies
        self.own = set(own)
        self.types = [(path, part, type(part)) for path, part in paths_of(module)]
        self.watched = [*watch_structure(module), *watch_code(module)]
        # The tensors with numbers that the module has here: where they are, and how often they were written to. Weights
        # notice it themselves, see `local_weights.py`.
        self.tensors = [
            (each._replace(kind=WEIGHTS, key=name), tensor, version_of(tensor))
            for each in self.watched
            for name, tensor in (each.now.items() if each.kind in (kinds.ATTRIBUTES, WEIGHTS) else ())
            if type(tensor) is torch.Tensor and not tensor.is_meta
        ]
        self.now, self.before = [each.now for each in self.watched], [each.before for each in self.watched]

    def expect(self, weights: Mapping[str, Any]) -> None:
        """Takes these weights, by name, for the module's own."""
        for each in self.watched:
            if each.kind == WEIGHTS:
                for key in each.before:
                    each.before[key] = weights.get(each.path + key, each.before[key])

    def changes(self, allowed: Collection[str] = (), is_filled: bool = False) -> list[Watched]:
        """Returns what has changed.

        allowed: names of attributes that may change. is_filled: whether the module has its weights now. Then they are
        not compared.
        """
        found = self.find(allowed, is_filled)
        if any(each.kind == WEIGHTS for each in found):
            self.take_back_copies()
            found = self.find(allowed, is_filled)
        return found

    def find(self, allowed: Collection[str], is_filled: bool) -> list[Watched]:
        found = [
            Watched({CLASS: type(part)}, {CLASS: cls}, path, kinds.CLASSES, part, key=CLASS)
            for path, part, cls in self.types
            if type(part) is not cls
        ]
        if not is_filled:
            found += [each for each, tensor, was in self.tensors if version_of(tensor) != was]
        if not is_filled and are_equal(self.now, self.before):
            return found
        for each in self.watched:
            if not (is_filled and each.kind == WEIGHTS or are_equal(each.now, each.before)):
                found += [change for change in self.changes_of(each, is_filled) if change.name not in allowed]
        return found

    def changes_of(self, each: Watched, is_filled: bool) -> Iterator[Watched]:
        now, before = each.now, each.before
        for key in {**before, **now}:
            is_same = key in now and key in before and now[key] is before[key]
            if is_same or is_filled and key in self.own and not each.path:
                continue
            if matters(each, key):
                yield each._replace(key=key)
            elif key in now:  # the next comparison is fast
                before[key] = snapshot(now[key])
            else:
                before.pop(key, None)

    def notes(self) -> dict[torch.nn.Module, set[str]]:
        """Returns the attributes that nodes have set for their own code, by part."""
        watched = (each for each in self.watched if each.kind == kinds.ATTRIBUTES)
        parts = [each for each in watched if isinstance(each.owner, torch.nn.Module)]
        found = {each.owner: each.before.keys() - each.names - {*kinds.COMFYUI_ATTRIBUTES} for each in parts}
        return {part: names for part, names in found.items() if names}


def matters(watched: Watched, name: str) -> bool:
    """Whether the difference may change what the model computes. A new attribute may be a node's own note."""
    value, before = watched.now.get(name), watched.before.get(name)
    was_there = name in (watched.names or watched.before)
    if before is FOREIGN:
        return True
    if watched.kind == kinds.ATTRIBUTES:
        if name in kinds.COMFYUI_ATTRIBUTES or name.startswith("_") and not callable(value):
            return False
        own = getattr(value, "__func__", None)
        if own and value.__self__ is watched.owner and own is getattr(type(watched.owner), name, None):
            return False  # a node has put the class's own method back
        is_more = callable(value) or isinstance(value, torch.Tensor)
        return is_more or was_there and not equal(value, before)
    if watched.kind == kinds.METHODS and name in OF_NEW_OBJECTS:
        return False
    if watched.kind == kinds.FUNCTIONS and not was_there:  # nobody in ComfyUI reads a new name
        return False
    if watched.kind in (kinds.METHODS, kinds.FUNCTIONS):
        # Another plain value of a class is one of all of its objects.
        may_be_setting = watched.kind == kinds.METHODS and was_there and not name.startswith("_")
        is_setting = may_be_setting and name not in kinds.COMFYUI_ATTRIBUTES and type(value) in PLAIN
        return is_code(value) or is_code(before) or is_setting and not equal(value, before)
    return True


def equal(value: Any, other: Any) -> bool:
    return type(value) is type(other) and are_equal(value, other)


def watch(now: Any, path: str, kind: str, owner: Any) -> Watched:
    return Watched(now, now.copy(), path, kind, owner)


def watch_structure(module: torch.nn.Module) -> Iterator[Watched]:
    for path, part in paths_of(module):
        yield watch_attributes(part, path)
        yield watch(parts_of(part), path, kinds.PARTS, part)
        for kind, hooks in zip(kinds.HOOKS, hooks_of(part), strict=True):
            yield watch(hooks, path, kind, part)
        for weights in (parameters_of(part), buffers_of(part)):
            yield watch(weights, path, WEIGHTS, part)
    for path, config in configs_of(module).items():
        yield watch_attributes(config, f"{path}.")


def watch_attributes(owner: Any, path: str) -> Watched:
    before = {
        name: value if name.startswith("_") or name in kinds.COMFYUI_ATTRIBUTES else snapshot(value)
        for name, value in vars(owner).items()
    }
    return Watched(vars(owner), before, path, kinds.ATTRIBUTES, owner, frozenset(before))


def snapshot(value: Any) -> Any:
    """Returns a copy of a list, dict or set, and of those in it: a node may write into one. Other values stay."""
    if isinstance(value, dict):
        found = value.copy()
        found.update((name, snapshot(each)) for name, each in value.items())
        return found
    if type(value) in (list, tuple, set):
        return type(value)(map(snapshot, value))
    return value


def configs_of(module: torch.nn.Module) -> dict[str, Any]:
    """Returns the plain objects that parts have as attributes, such as a Flux's `params`, by path."""
    parts = paths_of(module)
    return {path + name: value for path, part in parts for name, value in vars(part).items() if is_config(value)}


def is_config(value: Any) -> bool:
    if isinstance(value, (type, enum.Enum, torch.nn.Module)) or not hasattr(value, "__dict__"):
        return False
    return is_dataclass(value) or not callable(value) and is_comfyuis(find_module_file(value))


def paths_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, part in module.named_modules():
        yield f"{name}." if name else "", part


def classes_of(module: torch.nn.Module) -> list[type]:
    return list(dict.fromkeys(each for part in module.modules() for each in type(part).__mro__ if each is not object))


def namespaces_of(module: torch.nn.Module) -> dict[str, types.ModuleType]:
    """Returns ComfyUI's Python modules that define the classes, and all that these get functions or classes from."""
    names = [each.__module__ for each in classes_of(module)]
    found: dict[str, types.ModuleType] = {}
    while names:
        name = names.pop()
        place = sys.modules.get(name)
        if place is None or name in found or name in OF_DEVICES or not is_comfyuis(getattr(place, "__file__", None)):
            continue
        found[name] = place
        names += [str(getattr(value, "__module__", "")) for value in vars(place).values() if callable(value)]
    return found


def watch_code(module: torch.nn.Module) -> Iterator[Watched]:
    """Watches the classes and functions that a module's code uses."""
    for each in classes_of(module):
        yield watch_names(each, f"{each.__name__}.", kinds.METHODS)
    places = namespaces_of(module)
    for name, place in places.items():
        yield watch_names(place, f"{name}.", kinds.FUNCTIONS)
    for name in NAMED.keys() - places.keys():
        yield watch_names(importlib.import_module(name), f"{name}.", kinds.FUNCTIONS, NAMED[name])
    yield watch_names(torch, "torch.", kinds.FUNCTIONS, COMPUTING)
    yield watch_names(torch.nn.functional, "torch.nn.functional.", kinds.FUNCTIONS)


def watch_names(owner: Any, path: str, kind: str, names: Iterable[str] = ()) -> Watched:
    """Watches a class or a Python module."""
    now, before, names = vars(owner), dict(vars(owner)), frozenset(names)
    is_others = is_not_torchs if owner in TORCH else is_foreign
    if kind == kinds.FUNCTIONS or is_comfyuis(find_module_file(owner)):
        found = {name: getattr(now.get(name), "__func__", now.get(name)) for name in names or now}
        before |= {name: FOREIGN for name, value in found.items() if is_others(value)}
    return Watched(now, before, path, kind, owner, names)
