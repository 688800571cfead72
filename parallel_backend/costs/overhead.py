"""Counts what sharing adds to a rank's own work: merging, packing, encoding, and the operations of bands of rows."""

from __future__ import annotations

from ..plan import EXCHANGE_BLOCK, EXCHANGE_PARTS, ParallelPlan
from .forward import Cost, ForwardCost

# Under ring, each part of the keys gives a result in fp32, which is merged with the result so far. These are the bytes
# read and written for it, in multiples of A.
MERGED = 6
# What a lossy exchange costs for each number: the bytes sent; and how often it is read or written to encode and to
# decode it, besides its byte. And the operations for each tensor (`seams/exchange/differences.py`).
CODED_BYTES = 1 / 2 + 2 / EXCHANGE_BLOCK
ENCODED, DECODED = 22, 8
ENCODE_OPERATIONS, DECODE_OPERATIONS = 24, 8
# The operations that sharing tokens adds to a block (`seams/exchange`): under Ulysses, and for each hop of a ring.
# Exchanges are not among them.
ULYSSES_OPERATIONS, HOP_OPERATIONS = 20, 9
# The operations that bands of rows add to a padded convolution and to a group norm, see `seams/bands`.
BORDER_OPERATIONS, NORM_OPERATIONS = 12, 32


def count_merged_bytes(forward: ForwardCost, plan: ParallelPlan) -> float:
    return forward.count * MERGED * forward.activation / plan.ulysses if plan.ring > 1 else 0.0


def count_coding(forward: ForwardCost, plan: ParallelPlan) -> Cost:
    """Returns the cost of encoding and decoding what a rank exchanges in a forward of one row."""
    if not plan.keeps_differences:
        return Cost()
    numbers = forward.activation / plan.token_ways * (2 + 2 * forward.kv)
    moved = numbers * (ENCODED + DECODED + 2 / forward.itemsize)
    operations = (3 + EXCHANGE_PARTS) * ENCODE_OPERATIONS + 4 * EXCHANGE_PARTS * DECODE_OPERATIONS
    return Cost(moved=moved * forward.count, operations=operations * forward.count)


def count_copied_bytes(forward: ForwardCost, plan: ParallelPlan) -> float:
    """Returns the bytes that Ulysses reads and writes to pack and unpack all tokens: queries, keys and values on their
    way in, and the result twice on its way back."""
    sent = CODED_BYTES / forward.itemsize if plan.keeps_differences else 1
    return forward.count * (6 + 4 * forward.kv) * sent * forward.activation if plan.ulysses > 1 else 0.0


def count_added_operations(forward: ForwardCost, plan: ParallelPlan) -> float:
    """Returns how many operations a forward has more because its tokens are shared."""
    if plan.token_ways == 1:
        return 0.0
    added = forward.count * (ULYSSES_OPERATIONS * (plan.ulysses > 1) + HOP_OPERATIONS * (plan.ring - 1))
    if forward.bands:
        added += BORDER_OPERATIONS * forward.bands.convolutions + NORM_OPERATIONS * forward.bands.group_norms
    return added
