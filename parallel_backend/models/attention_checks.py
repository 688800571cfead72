"""Compares the heads that a spec names with the attention modules' own, when a model is loaded.

A forward compares them, too; but of keys' heads it sees only whether they divide, and then the image would be wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch

from .spec import BlockList, ModelSpec

HEADS = ("heads", "num_heads")  # what modules call their number of heads
LAYERS = ("to_q", "to_k")  # and their layers of queries and keys


class AttentionSizes(NamedTuple):
    """Sizes of a model's attention. kv_heads: of keys and values, if they are fewer."""

    heads: int
    head_dim: int
    kv_heads: int | None = None


def differences_in_attention(
    block: torch.nn.Module, paths: list[str], blocks: BlockList, spec: ModelSpec, sizes: AttentionSizes
) -> Iterator[str]:
    """Lists the modules at these paths of a block that have other heads than the spec says, as far as they show it.

    sizes: by the spec.
    """
    heads_of_keys = sizes.kv_heads or sizes.heads
    for path in paths:
        with contextlib.suppress(AttributeError):
            module, where = block.get_submodule(path), f"{path or 'the block'} of {blocks.path}"
            own = next((heads for name in HEADS if isinstance(heads := getattr(module, name, None), int)), sizes.heads)
            if own != sizes.heads:
                yield f"{where} has {own} heads, and `heads` ({spec.heads}) is {sizes.heads}"
                continue
            layers = [getattr(module, name, None) for name in LAYERS]
            queries, keys = (layer.out_features if isinstance(layer, torch.nn.Linear) else 0 for layer in layers)
            head_dim, rest = divmod(queries, sizes.heads)
            if rest or head_dim > sizes.head_dim:
                said = f"`{'width' if spec.width else 'head_dim'}` ({spec.width or spec.head_dim})"
                yield f"{where} has queries of {queries} dims, and {said} makes {sizes.heads}×{sizes.head_dim}"
            elif keys and head_dim and keys != heads_of_keys * head_dim:
                said = f"`kv_heads` ({spec.kv_heads}) is {heads_of_keys}" if spec.kv_heads else "`kv_heads` is not set"
                yield f"{where} has {keys / head_dim:g} heads of keys, and {said}"
