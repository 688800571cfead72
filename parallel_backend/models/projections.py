"""How an attention module makes queries, keys and values of its tokens, for specs of either shelf.

With it, ranks can gather the module's tokens in place of exchanging queries, keys and values, and make those of their
own heads alone (`seams/exchange/hidden.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
