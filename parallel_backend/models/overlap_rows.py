"""Which rows of a block's linear layers are not for attention, for specs of either kind.

What they compute is computed while attention exchanges tokens (`seams/beside.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

# A layer's rows, in a spec: a letter each for queries, keys and values, in turn, then this for all others. "qkv+" is a
# layer that makes queries, keys, values and something else; "+" is one that makes nothing for attention.
OTHER = "+"
# The MLP beside attention in diffusers' single blocks.
MLP_BESIDE = {"proj_mlp": OTHER, "act_mlp": OTHER}


def present(module: torch.nn.Module, paths: Iterable[str]) -> dict[str, Any]:
    """Of these submodules those that the module has."""
    found = {}
    for path in paths:
        with contextlib.suppress(AttributeError):
            found[path] = module.get_submodule(path)
    return found


def first_rows(rows: str, width: int) -> int:
    """How many rows of a layer are for attention."""
    return width * len(rows.removesuffix(OTHER))


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether rows of it are rows of its values."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def rows_beside(block: torch.nn.Module, rows: Mapping[str, str], width: int) -> dict[torch.nn.Module, int]:
    """Of a block's linear layers those that can be put off, and of each how many rows. rows: what they are of, by path
    (see `OTHER`). width: of all heads, of which keys have as many as queries."""
    layers = {layer: first_rows(rows[path], width) for path, layer in present(block, rows).items()}
    linear = {layer: first for layer, first in layers.items() if isinstance(layer, torch.nn.Linear)}
    return {each: each.out_features - first for each, first in linear.items() if not first or is_plain(each.weight)}
