"""The heads of a model's attention, read off the modules that attend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

# What classes call the number of heads, of heads of keys and values, the dims of a head, and those of all heads.
HEADS = ("heads", "num_heads", "n_heads", "n_local_heads", "num_attention_heads")
KV_HEADS = ("kv_heads", "num_kv_heads", "n_local_kv_heads", "kvheads")
HEAD_DIM = ("head_dim", "dim_head", "dim_heads", "headdim")
WIDTH, KV_WIDTH = ("inner_dim", "hidden_size"), ("inner_kv_dim",)
# Layers whose rows are the queries', or those of queries, keys and values.
QUERIES, JOINED = ("to_q", "to_query"), "qkv"


class AttentionSizes(NamedTuple):
    """Sizes of a model's attention. kv_heads: of keys and values, if they are fewer. Query heads share them, one group
    after the other. They are sent unrepeated, whether the model repeats them before attention or not."""

    heads: int
    head_dim: int
    kv_heads: int | None = None


def read_sizes(module: torch.nn.Module) -> AttentionSizes | None:
    """Reads the sizes off a module that attends, or off the first module in it that has a number of heads. Returns None
    if none has."""
    for each in module.modules():
        if heads := first_int(each, HEADS):
            head_dim = first_int(each, HEAD_DIM) or (first_int(each, WIDTH) or count_query_rows(each)) // heads
            kv_width = first_int(each, KV_WIDTH)
            kv_heads = first_int(each, KV_HEADS) or (kv_width // head_dim if kv_width and head_dim else heads)
            return AttentionSizes(heads, head_dim, kv_heads if kv_heads != heads else None)
    return None


def first_int(module: torch.nn.Module, names: Sequence[str]) -> int:
    """Returns the first of these attributes that is a whole number. 0 if there is none."""
    return next((value for name in names if isinstance(value := vars(module).get(name), int)), 0)


def count_query_rows(module: torch.nn.Module) -> int:
    """Returns the rows of the first layer for queries. 0 if none is known."""
    for path, layer in module.named_modules():
        name, rows = path.rpartition(".")[2], getattr(layer, "out_features", 0)
        if name in QUERIES or name.endswith(JOINED):
            return rows if name in QUERIES else rows // 3
    return 0


def differences_in_attention(
    block: torch.nn.Module, paths: Sequence[str], where: str, sizes: AttentionSizes | None
) -> Iterator[str]:
    """Lists the modules at these paths of a block whose heads are unknown, or not the model's. where: of the block."""
    for path in paths:
        with contextlib.suppress(AttributeError):
            own, name = read_sizes(block.get_submodule(path)), f"{path or 'the block'} of {where}"
            if own is None or sizes is None or not own.head_dim:
                yield f"{name} has no number of heads that is known here"
            elif own.heads != sizes.heads:
                yield f"{name} has {own.heads} heads, and others have {sizes.heads}"
            elif own.kv_heads != sizes.kv_heads:
                yield f"{name} has {own.kv_heads} heads of keys, and others have {sizes.kv_heads}"
