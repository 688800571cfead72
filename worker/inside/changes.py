"""Applies in a rank what nodes change of the model for a call, and takes back what their functions left on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..engine import compat
from ..wire.tree import PLAIN

ATTRIBUTES, PARTS, METHODS, FUNCTIONS, CLASSES = "attributes", "parts", "methods", "functions", "classes"
HOOK_BEFORE, HOOK_AFTER, OBJECT_PATCH = "hook before", "hook after", "object patch"
# Attributes that ComfyUI sets while it loads, moves or runs a model.
COMFYUI_ATTRIBUTES = (
    *("training", "comfy_patched_weights", "comfy_force_cast_weights", "comfy_cast_weights"),
    *("prev_comfy_cast_weights", "weight_function", "bias_function", "seed_key"),
    # Of dynamic VRAM, which brings a layer's weights to the card as its forward begins.
    *("weight_lowvram_function", "bias_lowvram_function", "_v", "_v_weight", "_v_bias", "_v_signature", "_prefetch"),
    *("_pin_state", "_pins", "_v_block", "_v_block_faulted", "_comfy_graph"),
)
MISSING = object()


@contextmanager
def apply_changes(model: torch.nn.Module, changes: Sequence[Sequence[Any]]) -> Iterator[None]:
    """While entered, the model has these changes. Each has a kind, an owner, a key, whether the value is there, and the
    value. A hook has its module, whether it gets keywords, and the function. An object patch has its path and value."""
    with ExitStack() as undo:
        for kind, *change in changes:
            apply = {HOOK_BEFORE: add_hook, HOOK_AFTER: add_hook, OBJECT_PATCH: set_path}.get(kind, set_value)
            undo.callback(apply(kind, model, *change))
        yield


# Each of these makes a change, and returns what takes it back.


def set_path(_kind: str, model: torch.nn.Module, path: str, value: Any) -> Callable[[], Any]:
    import comfy.utils

    before = comfy.utils.set_attr(model, path, value)
    return lambda: comfy.utils.set_attr(model, path, before)


def add_hook(
    kind: str, _model: torch.nn.Module, module: torch.nn.Module, with_kwargs: bool, hook: Any
) -> Callable[[], Any]:
    add = module.register_forward_pre_hook if kind == HOOK_BEFORE else module.register_forward_hook
    return add(hook, with_kwargs=with_kwargs).remove


def set_value(kind: str, _model: torch.nn.Module, owner: Any, key: str, present: bool, value: Any) -> Callable[[], Any]:
    if kind in (CLASSES, METHODS, FUNCTIONS):
        before = type(owner) if kind == CLASSES else vars(owner).get(key, MISSING)
        setattr(owner, key, value) if present else delattr(owner, key)
        return lambda: delattr(owner, key) if before is MISSING else setattr(owner, key, before)
    slots: dict[str, Any] = compat.parts_of(owner) if kind == PARTS else vars(owner)
    before = slots.get(key, MISSING)
    put(slots, key, value if present else MISSING)
    return lambda: put(slots, key, before)


def put(slots: dict[str, Any], key: str, value: Any) -> None:
    if value is MISSING:
        slots.pop(key, None)
    else:
        slots[key] = value


class Leftovers:
    """Takes back the attributes that functions set on the model's parts during a sampling."""

    def __init__(self) -> None:
        self.before: list[tuple[torch.nn.Module, dict[str, Any]]] = []
        self.found: list[tuple[torch.nn.Module, str, Any]] = []  # with the value before

    def begin(self, model: torch.nn.Module) -> None:
        """Remembers the attributes. Does nothing within a sampling."""
        if not self.before:
            self.before = [(part, dict(vars(part))) for part in model.modules()]

    def pause(self) -> None:
        """Called before a plan sets attributes of its own. `begin` goes on."""
        for part, before in self.before:
            for name, value in vars(part).items():
                was = before.get(name, MISSING)
                if value is not was and name not in COMFYUI_ATTRIBUTES and (was is MISSING or type(was) in PLAIN):
                    self.found.append((part, name, was))
        self.before = []

    def end(self) -> None:
        self.pause()
        for part, name, before in reversed(self.found):
            put(vars(part), name, before)
        self.found = []
