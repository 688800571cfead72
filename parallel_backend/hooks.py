"""Puts hooks and attributes on another library's model, and removes all of them again. Replaces functions of torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

NOTHING = object()


class Hooks(ExitStack):
    """Hooks on modules, and attributes that replace their own. `close` removes all of them, in reverse order, as
    leaving a `with` does. `callback` undoes another kind of change."""

    def before(self, module: torch.nn.Module, hook: Callable, **options: bool) -> None:
        """Registers a forward pre-hook, with torch's options."""
        self.callback(module.register_forward_pre_hook(hook, **options).remove)

    def after(self, module: torch.nn.Module, hook: Callable, **options: bool) -> None:
        """Registers a forward hook, with torch's options."""
        self.callback(module.register_forward_hook(hook, **options).remove)

    def replace(self, owner: object, name: str, value: Any) -> None:
        """Sets an attribute of an object, and keeps the old one, if any."""
        before = vars(owner).get(name, NOTHING)
        setattr(owner, name, value)
        self.callback(partial(delattr, owner, name) if before is NOTHING else partial(setattr, owner, name, before))


class ReplaceFunction(TorchFunctionMode):
    """While entered, `call` runs in place of a function of torch."""

    def __init__(self, function: Callable, call: Callable) -> None:
        super().__init__()
        self.function, self.call = function, call

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return (self.call if func is self.function else func)(*args, **(kwargs or {}))
