"""Private names of ComfyUI that the nodes use, each with the reason why no public name serves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


def has_inner_forward(module: torch.nn.Module) -> bool:
    """Whether a diffusion model's class has a `_forward` with the arguments of `forward`.

    ComfyUI's classes run the wrappers of nodes around `_forward`. Each class passes the arguments on in its own way,
    and the wrappers rely on that way.
    """
    inner = getattr(type(module), "_forward", None)
    outer = inspect.signature(module.forward).parameters.keys()
    return inner is not None and inspect.signature(inner).parameters.keys() - {"self"} == outer


def runs_wrappers(module: torch.nn.Module) -> bool:
    """Whether the class of a diffusion model runs the wrappers of nodes. A few of ComfyUI's do not (SD3)."""
    forwards = (getattr(vars(cls).get("forward"), "__code__", None) for cls in type(module).__mro__)
    return any("WrapperExecutor" in code.co_names for code in forwards if code)


def inner_forward(module: torch.nn.Module) -> Callable[..., Any]:
    """Returns the `_forward` of a diffusion model: its forward without the wrappers of nodes around it."""
    return module._forward  # pyright: ignore[reportReturnType]
