"""The bytes that a forward takes beside the weights: one estimate for the plan node, ComfyUI's memory management, the
ranks and an automatic plan.

It has two factors. The model gives what one device takes for the whole call: ComfyUI's `memory_required` of its
classes, `device_bytes` of others. The plan gives the part of that on the rank with the most, `rank_bytes`.
"""

from __future__ import annotations

from ..axes import TOKEN_AXES
from ..groups.mesh_layout import largest_rows, largest_share
from ..plan import ParallelPlan

# With A the bytes of all tokens between two blocks, a rank takes at most IN_BLOCKS × A / N in its blocks, where N ranks
# share the tokens; and WHOLE × A for streams that it has whole: before and after the blocks, and between ComfyUI's.
# tests/engine/cuda/test_sizes.py measures both on models of published sizes.
IN_BLOCKS, WHOLE = 20, 3


def device_bytes(activation: float) -> float:
    """What one device takes for a forward. activation: bytes of all tokens between two blocks, of all rows."""
    return (IN_BLOCKS + WHOLE) * activation


def token_factor(plan: ParallelPlan) -> float:
    """How much of a row's bytes the rank with the most tokens takes: 1 where tokens are not shared."""
    return (WHOLE + IN_BLOCKS * largest_share(plan, TOKEN_AXES)) / (IN_BLOCKS + WHOLE)


def rank_bytes(whole: float, rows: int, plan: ParallelPlan) -> float:
    """What the rank with the most takes for a call of so many rows. whole: what one device would take for all rows."""
    return whole * largest_rows(plan, rows) / rows * token_factor(plan)
