"""Attention of a compiled block, as one operator of its graph.

A graph cannot contain running collectives, the state of a run, or lengths that differ between ranks. The operator hides
them. So a block is one graph, similar blocks share it, and only tensors pass through it. torch's operators are global
to the process. So the running block's attention (`RUNNING`) is global, too, but only while the block runs.

Shapes: B batch, H heads, L local tokens, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

Attend = Callable[..., torch.Tensor]  # like F.scaled_dot_product_attention

NAME = "paralleldit::attention"
plain_attention = F.scaled_dot_product_attention


class Running:
    """The compiled block that runs.

    by_path: the AttentionSeam of its modules.
    paths: of these modules; other paths need another graph.
    seam: of the module that runs.
    """

    def __init__(self) -> None:
        self.compiles = False  # whether blocks run compiled at all
        self.by_path: Mapping[str, Any] = {}
        self.paths: tuple[str, ...] = ()
        self.seam: Any = None


RUNNING = Running()


@torch.library.custom_op(NAME, mutates_args=())
def attention_op(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    path: str,
    call: int,
) -> torch.Tensor:
    """Computes the attention of the module at a path of the running block: BLHD, contiguous in this order."""
    seam, running = RUNNING.by_path[path], RUNNING.seam
    RUNNING.seam = None  # its own kernel is torch's
    try:
        attend = seam.attends[call]
        out_BHLD = attend(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    finally:
        RUNNING.seam = running
    return out_BHLD.transpose(1, 2).clone(memory_format=torch.contiguous_format)


@attention_op.register_fake
def _(query: torch.Tensor, _key: torch.Tensor, value: torch.Tensor, *_: Any) -> torch.Tensor:
    batch, heads, tokens = query.shape[:3]
    return query.new_empty(batch, tokens, heads, value.shape[-1])


def traceable_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Replaces `F.scaled_dot_product_attention` while blocks run compiled. A graph is valid for the `paths` that are
    read here."""
    seam = RUNNING.seam if RUNNING.paths else None
    if seam is None:
        return plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    given = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, seam.path, seam.count_call())
    return attention_op(*given).transpose(1, 2)
