"""Attention by the plan's kernel, if this rank has all tokens: nothing is cut, exchanged or gathered."""

from __future__ import annotations

import torch

from ..attention_op import plain_attention
from ..exchange.heads import repeat_heads
from .backends import Backend


class LocalAttention:
    """backend: computes the attention."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Computes `F.scaled_dot_product_attention` of queries BHLD to keys BHSD. With dropout or a causal mask, which
        the others do not take, torch's own kernel runs."""
        if dropout_p or is_causal:
            more = {"scale": scale, "enable_gqa": enable_gqa}
            return plain_attention(query, key, value, attn_mask, dropout_p, is_causal, **more)
        heads, kv_heads = query.shape[1], key.shape[1]
        if heads != kv_heads:
            own = range(heads), range(kv_heads), heads // kv_heads
            key, value = repeat_heads(key, *own), repeat_heads(value, *own)
        return self.backend.attend(query, key, value, scale, attn_mask)
