"""Private names of ComfyUI that the nodes use, each with the reason why no public name serves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


def replace_inner_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> bool:
    """Replaces a diffusion model's `_forward`. Returns False if its class has none with the arguments of `forward`.

    ComfyUI's classes run the wrappers of nodes around `_forward`. Each class passes the arguments on in its own way,
    and the wrappers rely on that way.
    """
    inner = getattr(type(module), "_forward", None)
    outer = inspect.signature(module.forward).parameters.keys()
    if inner is None or inspect.signature(inner).parameters.keys() - {"self"} != outer:
        return False
    module.__dict__["_forward"] = forward
    return True
