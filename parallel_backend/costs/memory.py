"""Estimates the bytes that a forward needs beside the weights. The plan node, ComfyUI's memory management, the ranks
and automatic plans all use this estimate.

It has two factors. The model gives what one device needs for the whole call: ComfyUI's `memory_required` for its own
classes, `device_bytes` for others. The plan gives the share of the rank with the most, `rank_bytes`.
"""

from __future__ import annotations

from ..axes import TOKEN_AXES
from ..groups.mesh_layout import largest_rows, largest_share
from ..plan import ParallelPlan

# A is the bytes of all tokens between two blocks, and N ranks share the tokens. Then a rank needs at most
# IN_BLOCKS × A / N in its blocks, and WHOLE × A for the streams that it has whole: before and after the blocks, and
# between ComfyUI's blocks.
# tests/engine/cuda/test_sizes.py measures both on models of published sizes.
IN_BLOCKS, WHOLE = 20, 3


def device_bytes(activation: float) -> float:
    """Returns what one device needs for a forward. activation: bytes of all tokens between two blocks, for all rows."""
    return (IN_BLOCKS + WHOLE) * activation


def token_factor(plan: ParallelPlan) -> float:
    """Returns the share of a row's bytes on the rank with the most tokens; 1 if tokens are not shared."""
    return (WHOLE + IN_BLOCKS * largest_share(plan, TOKEN_AXES)) / (IN_BLOCKS + WHOLE)


def rank_bytes(whole: float, rows: int, plan: ParallelPlan) -> float:
    """Returns what the rank with the most needs for a call of `rows` rows. whole: what one device would need for all
    rows."""
    return whole * largest_rows(plan, rows) / rows * token_factor(plan)
