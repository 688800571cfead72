"""Estimates the bytes that a forward needs beside the weights. The plan node, the host's memory management, the
ranks and automatic plans all use this estimate.

It has two factors. The model gives what one device needs for the whole call: `one_device_bytes` for diffusers' classes,
and the host's own estimate for others. The plan gives the share of the rank with the most, `rank_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..groups.mesh_layout import largest_rows, largest_share
from ..models.checks import attention_sizes_of, count_tokens
from ..models.spec import spec_of
from ..plan import ParallelPlan
from ..weights.sizes import WeightSizes

# A is the bytes of all tokens between two blocks, and N ranks share the tokens. Then a rank needs at most
# IN_BLOCKS × A / N in its blocks, and OUTSIDE × A for the streams that it has whole: before and after the blocks, and
# between blocks whose streams do not stay local.
# tests/engine/cuda/test_sizes.py measures both on models of published sizes.
IN_BLOCKS, OUTSIDE = 20, 3


def one_device_bytes(activation: float) -> float:
    """Returns what one device needs for a forward. activation: bytes of all tokens between two blocks, for all rows."""
    return (IN_BLOCKS + OUTSIDE) * activation


def token_factor(plan: ParallelPlan) -> float:
    """Returns the share of a row's bytes on the rank with the most tokens; 1 if tokens are not shared."""
    return (OUTSIDE + IN_BLOCKS * largest_share(plan, "sequence")) / (IN_BLOCKS + OUTSIDE)


def rank_bytes(whole: float, rows: int, plan: ParallelPlan) -> float:
    """Returns what the rank with the most needs for a call of `rows` rows. whole: what one device would need for all
    rows."""
    return whole * largest_rows(plan, rows) / rows * token_factor(plan)


def stale_cache_factor(plan: ParallelPlan, kv: float) -> float:
    """Returns the bytes that a block keeps of its tokens for later steps, in those of their queries.

    These are keys and values under PipeFusion, and under int4 also queries and results, each where it is sent and where
    it arrives. kv: the bytes of keys in those of queries.
    """
    if plan.patch_count > 1:
        return 2 * kv
    return 2 * (2 + 2 * kv) if plan.keeps_differences else 0.0


def stale_bytes(
    model: torch.nn.Module, plan: ParallelPlan, sizes: WeightSizes, dtype: torch.dtype, tokens: float
) -> int:
    """Returns the bytes of what PipeFusion or a lossy exchange keeps for later steps on the rank with the most.

    model: may be on the meta device. sizes: of its weights. dtype: of its activations. tokens: of the latents, of all
    rows of one group that shares tokens. Neither the text's tokens are counted, nor those of another kind of steps.
    """
    spec = spec_of(type(model))
    if spec is None or not stale_cache_factor(plan, 1):
        return 0
    heads, head_dim, kv_heads = attention_sizes_of(model, spec)
    width = heads * head_dim * dtype.itemsize
    blocks = max(map(len, sizes.by_stage(plan)))
    return math.ceil(stale_cache_factor(plan, (kv_heads or heads) / heads) * tokens * width * blocks / plan.token_ways)


def call_bytes(
    whole: float,
    latents: Sequence[int],
    model: torch.nn.Module,
    plan: ParallelPlan,
    sizes: WeightSizes,
    dtype: torch.dtype,
) -> float:
    """Returns what the rank with the most needs beside the weights for a call with latents of this shape (B, C, …), and
    for what it keeps for later steps. whole: what one device would need for the call. model, sizes, dtype: see
    `stale_bytes`."""
    tokens = count_tokens(model, [largest_rows(plan, latents[0]), *latents[1:]])
    return rank_bytes(whole, latents[0], plan) + stale_bytes(model, plan, sizes, dtype, tokens)
