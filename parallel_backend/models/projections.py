"""How an attention module makes queries, keys and values of its tokens, for specs of either shelf.

With it, ranks can gather the module's tokens in place of exchanging queries, keys and values, and make those of their
own heads alone (`seams/exchange/hidden.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

# The rows of a linear layer: those of queries, keys, values, and others, which stay of this rank's own tokens.
QUERY, KEY, VALUE, OTHER = "q", "k", "v", "+"
# The dtypes of weights of which a rank can take rows.
SLICEABLE = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Projections:
    """Norms between the layers and attention are of a head at most, and whatever else is there is of a token."""

    # The linear layers, and what their rows are of, in turn: "q", or "qkv", or "qkv+" where other things of the same
    # tokens follow, which the module splits off. Those that a module has not are left out.
    rows: Mapping[str, str]
    # The module's arguments of tokens, and their streams. Where it is given fewer of them, the first has the others'.
    tokens: Mapping[str, str] = field(default_factory=dict)
    # In place of these, for a module that has tokens beside attention's, as a block has: the layers' streams.
    inputs: Mapping[str, str] = field(default_factory=dict)
    # The linear layers that take what attention gives, and their streams; without any, it is what the module returns.
    outputs: Mapping[str, str] = field(default_factory=dict)
    # The module's attributes that say how many heads there are, and how many of keys and values.
    heads: tuple[str, ...] = ()
    kv_heads: tuple[str, ...] = ()
    # Those that say how wide all heads are together.
    widths: tuple[str, ...] = ()
    # Per-token arguments of the block that are for its attention alone.
    sides: tuple[str, ...] = ()


# What most attention of diffusers' over text and image has.
JOINT = {"to_q": "q", "to_k": "k", "to_v": "v", "add_q_proj": "q", "add_k_proj": "k", "add_v_proj": "v"}
JOINT_OUT = {"to_out.0": "hidden_states", "to_add_out": "encoder_hidden_states"}
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
    """Of a block's linear layers those that can be put off, and of each how many rows. rows: what they are of, by path,
    as in `Projections.rows`. width: of all heads, of which keys have as many as queries."""
    layers = {layer: first_rows(rows[path], width) for path, layer in present(block, rows).items()}
    linear = {layer: first for layer, first in layers.items() if isinstance(layer, torch.nn.Linear)}
    return {each: each.out_features - first for each, first in linear.items() if not first or is_plain(each.weight)}
