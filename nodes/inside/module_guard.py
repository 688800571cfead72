"""At every call, compares a model's module with what it was when it was loaded.

Node packs change attributes, methods, blocks, hooks and weights, often only for one call. They also replace functions
of ComfyUI for every model.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import comfy.model_base
import torch

from ...parallel_backend.compat import buffers_of, hooks_of, parameters_of, parts_of
from ...worker.inside.changes import ATTRIBUTES, COMFYUIS, FUNCTIONS, METHODS, PARTS

INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
COMFYUI = Path(comfy.model_base.__file__).resolve().parents[1]
HOOKS, WEIGHTS = "hooks", "weights"
# Methods that only new objects run. torch.compile replaces those of all modules.
OF_NEW_OBJECTS = ("__init__", "__setstate__")
OWN_FOLDERS = ("comfy", "comfy_api", "comfy_extras")  # of ComfyUI's own code


class Watched(NamedTuple):
    """A dict that a node may change. now: the dict. before: a copy of it. path: goes before the names of its keys.
    kind: which changes matter. owner: the part, class or Python module that has the dict."""

    now: Mapping[Any, Any]
    before: dict[Any, Any]
    path: str
    kind: str
    owner: Any


class Change(NamedTuple):
    """Something that has changed. name: in words. key: in the watched dict."""

    name: str
    watched: Watched
    key: Any


class ModuleGuard:
    """Remembers what a module is made of.

    Most calls change nothing. Then one comparison of two lists of dicts is enough, and it is fast because Python
    compares values by identity first. Only if the lists differ does it look for the names.
    """

    def __init__(self, module: torch.nn.Module, own: Collection[str]) -> None:
        """own: names of attributes that the stand-in has put on the module."""
        self.own = set(own)
        self.notes: dict[torch.nn.Module, set[str]] = {}  # by part, attributes that nodes set for their own code
        self.replaced = list(foreign_functions(module))
        code = [*watch_structure(module), *watch_classes(module), *watch_functions(module)]
        # By whether the module has its weights now. Then weights are not compared.
        self.watched = {True: code, False: [*code, *watch_weights(module)]}
        self.lists = {
            key: ([each.now for each in watched], [each.before for each in watched])
            for key, watched in self.watched.items()
        }

    def changes(self, allowed: Collection[str] = (), is_filled: bool = False) -> list[Change]:
        """Returns what has changed.

        allowed: names of attributes that may change. is_filled: whether the module has its weights now.
        """
        now, before = self.lists[is_filled]
        if not self.replaced and are_equal(now, before):
            return []
        found = [*self.replaced]
        for each in self.watched[is_filled]:
            for key in differing(each.now, each.before):
                if is_filled and key in self.own and not each.path:
                    continue
                if self.is_note(each, key) or not matters(each, key):
                    self.note(each, key)
                    continue
                name = (each.path.rstrip(".") or "the model") if each.kind == HOOKS else each.path + key
                if name not in allowed:
                    found.append(Change(name, each, key))
        return found

    def is_note(self, watched: Watched, key: str) -> bool:
        """Whether the key is an attribute that a node keeps for itself, with a new value."""
        value = watched.now.get(key)
        is_more = callable(value) or isinstance(value, torch.Tensor)
        is_parts = watched.kind == ATTRIBUTES and isinstance(watched.owner, torch.nn.Module)
        return is_parts and not is_more and key in self.notes.get(watched.owner, ())

    def note(self, watched: Watched, key: str) -> None:
        """Accepts a difference that does not matter, so that the next comparison is fast."""
        is_new = key not in watched.before and key not in COMFYUIS
        if key in watched.now:
            watched.before[key] = watched.now[key]
        else:
            watched.before.pop(key, None)
        if is_new and watched.kind == ATTRIBUTES and isinstance(watched.owner, torch.nn.Module):
            self.notes.setdefault(watched.owner, set()).add(key)


def are_equal(now: list, before: list) -> bool:
    try:
        return now == before
    except (RuntimeError, ValueError):  # replaced tensors: comparing them gives many truth values
        return False


def differing(now: Mapping[Any, Any], before: Mapping[Any, Any]) -> list[Any]:
    return [
        name for name in {**before, **now} if name not in now or name not in before or now[name] is not before[name]
    ]


def matters(watched: Watched, name: str) -> bool:
    """Whether the difference may change what the model computes. A new attribute may be a node's own note."""
    value, was_there = watched.now.get(name), name in watched.before
    if watched.kind == ATTRIBUTES:
        if name in COMFYUIS or name.startswith("_") and not callable(value):
            return False
        if is_own_method(watched.owner, name, value):  # a node has put it back
            return False
        is_more = callable(value) or isinstance(value, torch.Tensor)
        return is_more or was_there and not equal(value, watched.before[name])
    if watched.kind == METHODS and name in OF_NEW_OBJECTS:
        return False
    if watched.kind == FUNCTIONS and not was_there:  # ComfyUI's code reads no name that it has not
        return False
    if watched.kind in (METHODS, FUNCTIONS):
        return is_code(value) or is_code(watched.before.get(name))
    return True


def is_own_method(part: torch.nn.Module | None, name: str, value: Any) -> bool:
    own = getattr(value, "__func__", None)
    return own is not None and value.__self__ is part and own is getattr(type(part), name, None)


def equal(value: Any, other: Any) -> bool:
    try:
        return type(value) is type(other) and bool(value == other)
    except (RuntimeError, ValueError):
        return False


def is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, (property, staticmethod, classmethod))


def watch(now: Mapping[Any, Any], path: str, kind: str, owner: Any) -> Watched:
    return Watched(now, dict(now), path, kind, owner)


def watch_structure(module: torch.nn.Module) -> Iterator[Watched]:
    for path, part in paths_of(module):
        yield watch(vars(part), path, ATTRIBUTES, part)
        yield watch(parts_of(part), path, PARTS, part)
        for hooks in hooks_of(part):
            yield watch(hooks, path, HOOKS, part)
    for path, config in configs_of(module).items():
        yield watch(vars(config), f"{path}.", ATTRIBUTES, config)


def watch_weights(module: torch.nn.Module) -> Iterator[Watched]:
    for path, part in paths_of(module):
        for weights in (parameters_of(part), buffers_of(part)):
            yield watch(weights, path, WEIGHTS, part)


def configs_of(module: torch.nn.Module) -> dict[str, Any]:
    """Returns the dataclasses that parts have as attributes, such as a Flux's `params`, by path."""
    parts = paths_of(module)
    return {path + name: value for path, part in parts for name, value in vars(part).items() if is_dataclass(value)}


def paths_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, part in module.named_modules():
        yield f"{name}." if name else "", part


def classes_of(module: torch.nn.Module) -> list[type]:
    return list(dict.fromkeys(each for part in module.modules() for each in type(part).__mro__ if each is not object))


def watch_classes(module: torch.nn.Module) -> Iterator[Watched]:
    for each in classes_of(module):
        yield watch(vars(each), f"{each.__name__}.", METHODS, each)


def namespaces_of(module: torch.nn.Module) -> dict[str, ModuleType]:
    """Returns ComfyUI's Python modules that define the classes, and all that these get functions or classes from."""
    names = [each.__module__ for each in classes_of(module)]
    found: dict[str, ModuleType] = {}
    while names:
        name = names.pop()
        place = sys.modules.get(name)
        if place is None or name in found or not is_comfyuis(getattr(place, "__file__", None)):
            continue
        found[name] = place
        names += [str(getattr(value, "__module__", "")) for value in vars(place).values() if callable(value)]
    return found


def watch_functions(module: torch.nn.Module) -> Iterator[Watched]:
    for name, place in namespaces_of(module).items():
        yield watch(vars(place), f"{name}.", FUNCTIONS, place)


def is_comfyuis(file: Any) -> bool:
    """Whether a file belongs to ComfyUI's own code."""
    path = Path(file or "/")
    return path.is_relative_to(COMFYUI) and path.relative_to(COMFYUI).parts[0] in OWN_FOLDERS


def foreign_functions(module: torch.nn.Module) -> Iterator[Change]:
    """Yields functions, classes and methods of ComfyUI that a node pack replaced before this model was loaded."""
    code = [*watch_functions(module), *(each for each in watch_classes(module) if is_comfyuis(file_of(each.owner)))]
    for each in code:
        for name, value in each.now.items():
            if is_foreign(getattr(value, "__func__", value)):
                yield Change(each.path + name, each, name)


def file_of(value: Any) -> str | None:
    return getattr(sys.modules.get(getattr(value, "__module__", None) or ""), "__file__", None)


def is_foreign(value: Any) -> bool:
    """Whether it is a node pack's code, that is, neither ComfyUI's nor an installed package's."""
    if not is_code(value):
        return False
    code = getattr(value, "__code__", None)
    file = Path(str(code.co_filename if code else file_of(value)))
    return file.is_absolute() and not is_comfyuis(file) and not any(map(file.is_relative_to, INSTALLED))
