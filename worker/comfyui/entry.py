"""Where a call of a diffusion model leaves ComfyUI's process, and enters a rank: at the same method.

ComfyUI's classes run the wrappers of nodes in `forward`, around `_forward`. Some compute before or after that, such as
a scale of the latents. A call that has left by `_forward` must not do it again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import torch

from ..wire.operations import FORWARD, INNER


def runs_wrappers(cls: type) -> bool:
    """Whether the class of a diffusion model runs the wrappers of nodes. A few of ComfyUI's do not (SD3)."""
    return any("WrapperExecutor" in names for names in forward_names(cls))


def forward_names(cls: type) -> Iterator[Sequence[str]]:
    """Yields the names in the code of a class's `forward`, and of those that it inherits."""
    forwards = (getattr(vars(each).get(FORWARD), "__code__", None) for each in cls.__mro__)
    return (code.co_names for code in forwards if code)


def leaves_by(cls: type) -> str:
    """Returns the method of a diffusion model's class by which a call leaves: `_forward`, if `forward` runs nodes'
    wrappers around it, and takes its arguments, too; else `forward`. The loop of the Parallel Sampler has the arguments
    of one, and begins with the other."""
    if getattr(cls, INNER, None) is None:
        return FORWARD
    outer, inner = (inspect.signature(getattr(cls, name)).parameters for name in (FORWARD, INNER))
    takes_more = any(each.kind is each.VAR_KEYWORD for each in outer.values())
    fits = [*outer][3:] == [*inner][3:] or takes_more and {*list(outer)[3:]} <= {*inner}
    is_around = any({"WrapperExecutor", INNER} <= {*names} for names in forward_names(cls))
    return INNER if is_around and fits else FORWARD


def enter_at(module: torch.nn.Module, method: str) -> AbstractContextManager[Any]:
    """While entered, a call of a rank's module begins at this method."""
    if method == FORWARD or FORWARD in vars(module):  # a node's function in place of it runs whole
        return nullcontext()
    return patch.object(module, FORWARD, getattr(module, method))
