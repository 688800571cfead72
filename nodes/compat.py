"""Private names of ComfyUI's, each with why there is no public way."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


def replace_inner_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> bool:
    """Has a diffusion model's `_forward` be another function; False for a class that has none with forward's arguments.

    ComfyUI's classes run the wrappers that nodes ask for around it, each in its own way to pass arguments on, which
    wrappers count on.
    """
    inner = getattr(type(module), "_forward", None)
    outer = inspect.signature(module.forward).parameters.keys()
    if inner is None or inspect.signature(inner).parameters.keys() - {"self"} != outer:
        return False
    module.__dict__["_forward"] = forward
    return True
