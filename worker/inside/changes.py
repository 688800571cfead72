"""Applies in a rank what nodes change of the model for a call, and takes back what their functions left on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..engine import compat
from ..wire.tree import PLAIN

ATTRIBUTES, PARTS, METHODS, FUNCTIONS, CLASSES = "attributes", "parts", "methods", "functions", "classes"
OBJECT_PATCH, HOOK_BEFORE = "object patch", "hook before"
HOOKS = (HOOK_BEFORE, "hook after")
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
            if kind == OBJECT_PATCH:
                from comfy.utils import set_attr

                path, value = change
                undo.callback(set_attr, model, path, set_attr(model, path, value))
            elif kind in HOOKS:
                module, with_kwargs, hook = change
                add = module.register_forward_pre_hook if kind == HOOK_BEFORE else module.register_forward_hook
                undo.callback(add(hook, with_kwargs=with_kwargs).remove)
            else:
                owner, key, present, value = change
                undo.callback(put, kind, owner, key, put(kind, owner, key, value if present else MISSING))
        yield


def put(kind: str, owner: Any, key: str, value: Any) -> Any:
    """Sets a value of a part, a class or a Python module, or removes it. Returns what was there before."""
    slots: dict[str, Any] = compat.parts_of(owner) if kind == PARTS else vars(owner)
    before = type(owner) if kind == CLASSES else slots.get(key, MISSING)
    if kind not in (ATTRIBUTES, PARTS):
        delattr(owner, key) if value is MISSING else setattr(owner, key, value)
    elif value is MISSING:
        slots.pop(key, None)
    else:
        slots[key] = value
    return before


def are_equal(now: Any, before: Any) -> bool:
    """Whether two values are equal. Replaced tensors in them are not: comparing these gives many truth values."""
    try:
        return bool(now == before)
    except (RuntimeError, ValueError):
        return False


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
            put(ATTRIBUTES, part, name, before)
        self.found = []
