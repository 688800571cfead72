"""At every call, compares a model's module with what it was when it was loaded.

Node packs change attributes, methods, blocks, hooks and weights, often only for one call. They also replace functions
of ComfyUI for every model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ...worker.compat import version_of
from ...worker.inside.changes import ATTRIBUTES, CLASSES, COMFYUIS, FUNCTIONS, METHODS
from ...worker.wire.tree import PLAIN
from .watched import (
    CLASS,
    HOOKS,
    TORCHS,
    WEIGHTS,
    Watched,
    file_of,
    is_code,
    is_comfyuis,
    is_foreign,
    is_not_torchs,
    paths_of,
    snapshot,
    watch_classes,
    watch_functions,
    watch_numbers,
    watch_structure,
    watch_weights,
)

# Methods that only new objects run. torch.compile replaces those of all modules.
OF_NEW_OBJECTS = ("__init__", "__setstate__")


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

    def __init__(
        self, module: torch.nn.Module, own: Collection[str], take_back_copies: Callable[[], None] = lambda: None
    ) -> None:
        """own: names of attributes that the stand-in has put on the module. take_back_copies: puts the module's weights
        where nodes have put copies of them."""
        self.take_back_copies = take_back_copies
        self.own = set(own)
        self.notes: dict[torch.nn.Module, set[str]] = {}  # by part, attributes that nodes set for their own code
        self.types = [(path, part, type(part)) for path, part in paths_of(module)]
        self.tensors = watch_numbers(module)
        self.functions = [*watch_classes(module), *watch_functions(module)]
        self.replaced = list(foreign_functions(self.functions))
        code = [*watch_structure(module), *self.functions]
        # By whether the module has its weights now. Then weights are not compared.
        self.watched = {True: code, False: [*code, *watch_weights(module)]}
        self.lists = {
            key: ([each.now for each in watched], [each.before for each in watched])
            for key, watched in self.watched.items()
        }

    def expect(self, weights: Mapping[str, Any]) -> None:
        """Takes these weights, by name, for the module's own."""
        for each in self.watched[False]:
            if each.kind == WEIGHTS:
                for key in each.before:
                    each.before[key] = weights.get(each.path + key, each.before[key])

    def changes(self, allowed: Collection[str] = (), is_filled: bool = False) -> list[Change]:
        """Returns what has changed.

        allowed: names of attributes that may change. is_filled: whether the module has its weights now.
        """
        found = self.find(allowed, is_filled)
        if any(each.watched.kind == WEIGHTS for each in found):
            self.take_back_copies()
            found = self.find(allowed, is_filled)
        return found

    def find(self, allowed: Collection[str], is_filled: bool) -> list[Change]:
        found = [*self.replaced]
        for path, part, cls in self.types:
            if type(part) is not cls:
                found.append(
                    Change(path + CLASS, Watched({CLASS: type(part)}, {CLASS: cls}, path, CLASSES, part), CLASS)
                )
        if not is_filled:
            found += [
                Change(each.path + key, each, key) for each, key, now, was in self.tensors if version_of(now) != was
            ]
        now, before = self.lists[is_filled]
        if not self.replaced and are_equal(now, before):
            return found
        for each in self.watched[is_filled]:
            for change in self.changes_of(each, is_filled):
                if change.name not in allowed and change not in found:
                    found.append(change)
        return found

    def changes_of(self, each: Watched, is_filled: bool) -> Iterator[Change]:
        for key in differing(each.now, each.before):
            if is_filled and key in self.own and not each.path:
                continue
            if self.is_note(each, key) or not matters(each, key):
                self.note(each, key)
                continue
            name = (each.path.rstrip(".") or "the model") if each.kind == HOOKS else each.path + key
            yield Change(name, each, key)

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
            watched.before[key] = snapshot(watched.now[key])
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
    if watched.names is not None and name not in watched.names:
        return False
    if watched.kind == ATTRIBUTES:
        if name in COMFYUIS or name.startswith("_") and not callable(value):
            return False
        if is_own_method(watched.owner, name, value):  # a node has put it back
            return False
        is_more = callable(value) or isinstance(value, torch.Tensor)
        return is_more or was_there and not equal(value, watched.before[name])
    if watched.kind == METHODS and name in OF_NEW_OBJECTS:
        return False
    if watched.kind in (FUNCTIONS, TORCHS) and not was_there:  # ComfyUI's code reads no name that it has not
        return False
    if watched.kind in (METHODS, FUNCTIONS, TORCHS):
        return is_code(value) or is_code(watched.before.get(name)) or is_setting(watched, name)
    return True


def is_setting(watched: Watched, name: str) -> bool:
    """Whether it is another plain value of a class, which all of its objects have."""
    value, was_there = watched.now.get(name), name in watched.before
    if watched.kind != METHODS or not was_there or name.startswith("_") or name in COMFYUIS:
        return False
    return type(value) in PLAIN and not equal(value, watched.before[name])


def is_own_method(part: torch.nn.Module | None, name: str, value: Any) -> bool:
    own = getattr(value, "__func__", None)
    return own is not None and value.__self__ is part and own is getattr(type(part), name, None)


def equal(value: Any, other: Any) -> bool:
    try:
        return type(value) is type(other) and bool(value == other)
    except (RuntimeError, ValueError):
        return False


def foreign_functions(functions: Sequence[Watched]) -> Iterator[Change]:
    """Returns functions, classes and methods of ComfyUI, and functions of torch, that a node pack replaced before this
    model was loaded."""
    for each in functions:
        if each.kind == METHODS and not is_comfyuis(file_of(each.owner)):
            continue
        is_others = is_not_torchs if each.kind == TORCHS else is_foreign
        for name, value in each.now.items():
            if (each.names is None or name in each.names) and is_others(getattr(value, "__func__", value)):
                yield Change(each.path + name, each, name)
