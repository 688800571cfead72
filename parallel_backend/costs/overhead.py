"""Counts what sharing adds to a rank's own work: merging, packing, encoding, and the operations of bands of rows."""

from __future__ import annotations

from typing import NamedTuple

from ..plan import EXCHANGE_BLOCK, EXCHANGE_PARTS, FP8, INT4, INT8, ParallelPlan
from .forward import Cost, ForwardCost

# Under ring, each part of the keys gives a result in fp32, which is merged with the result so far. These are the bytes
# read and written for it, in multiples of A.
MERGED = 6
SCALE_BYTES = 2 / EXCHANGE_BLOCK  # of a number in a lossy exchange


class Coding(NamedTuple):
    """What a lossy exchange costs for each number: bytes sent; and how often it is read or written to encode and to
    decode it, besides its byte. And the operations for each tensor (`seams/exchange/formats.py`, `differences.py`)."""

    sent: float
    encoded: int
    decoded: int
    encode_operations: int
    decode_operations: int


BYTES = Coding(1 + SCALE_BYTES, 8, 1, 9, 3)
CODINGS = {INT8: BYTES, FP8: BYTES, INT4: Coding(1 / 2 + SCALE_BYTES, 22, 8, 24, 8)}
# The operations that sharing tokens adds to a block (`seams/exchange`): under Ulysses, and for each hop of a ring.
# Exchanges are not among them.
ULYSSES_OPERATIONS, HOP_OPERATIONS = 20, 9
# The operations that bands of rows add to a padded convolution and to a group norm, see `seams/bands`.
BORDER_OPERATIONS, NORM_OPERATIONS = 12, 32


def count_merged_bytes(forward: ForwardCost, plan: ParallelPlan) -> float:
    return forward.count * MERGED * forward.activation / plan.ulysses if plan.ring > 1 else 0.0


def count_coding(forward: ForwardCost, plan: ParallelPlan) -> Cost:
    """Returns the cost of encoding and decoding what a rank exchanges in a forward of one row."""
    coding = CODINGS.get(plan.exchange_dtype)
    if coding is None or plan.token_ways == 1:
        return Cost()
    own, kv = forward.activation / plan.token_ways, 2 * forward.kv
    seen = max(forward.cached, forward.activation) / plan.token_ways  # cached keys are decoded anew in each forward
    results, parts = (2, EXCHANGE_PARTS) if plan.ulysses > 1 else (0, 1)
    encoded, decoded = own * (results + kv), own * results + seen * kv * plan.ring
    moved = encoded * (coding.encoded + 1 / forward.itemsize) + decoded * (coding.decoded + 1 / forward.itemsize)
    encodings, decodings = 2 + results // 2 * (1 + parts), (results + 2 * plan.ring) * parts
    operations = encodings * coding.encode_operations + decodings * coding.decode_operations
    return Cost(moved=moved * forward.count, operations=operations * forward.count)


def count_copied_bytes(forward: ForwardCost, plan: ParallelPlan) -> float:
    """Returns the bytes that Ulysses reads and writes to pack and unpack all tokens: queries, keys and values on their
    way in, and the result twice on its way back."""
    sent = 1 / forward.itemsize if plan.exchange_dtype in CODINGS else 1
    return forward.count * (6 + 4 * forward.kv) * sent * forward.activation if plan.ulysses > 1 else 0.0


def count_added_operations(forward: ForwardCost, plan: ParallelPlan) -> float:
    """Returns how many operations a forward has more because its tokens are shared."""
    if plan.token_ways == 1:
        return 0.0
    added = forward.count * (ULYSSES_OPERATIONS * (plan.ulysses > 1) + HOP_OPERATIONS * (plan.ring - 1))
    if forward.bands:
        added += BORDER_OPERATIONS * forward.bands.convolutions + NORM_OPERATIONS * forward.bands.group_norms
    return added
