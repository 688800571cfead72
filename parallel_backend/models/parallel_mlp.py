"""Finds the layers of a block's MLP, and their rows, that can be computed while attention exchanges tokens.

See `BlockList.parallel_mlp`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch


def submodules(module: torch.nn.Module, paths: Iterable[str]) -> dict[str, Any]:
    """Returns those of these submodules that the module has."""
    found = {}
    for path in paths:
        with contextlib.suppress(AttributeError):
            found[path] = module.get_submodule(path)
    return found


def split_plain_rows(weight: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns views of a weight's first rows and of its other rows."""
    return weight[:first], weight[first:]


Split = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor] | None]
# By a weight's class, how its rows are split. A program that loads quantised weights adds their class.
SPLITS: dict[type, Split] = {torch.Tensor: split_plain_rows, torch.nn.Parameter: split_plain_rows}


def split_rows(weight: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Splits a weight before a row. A layer with the first part computes the whole layer's first outputs, and a layer
    with the second part its other outputs. Returns None if the weight's class or form cannot be split there."""
    split = SPLITS.get(type(weight))
    return split(weight, first) if split else None
