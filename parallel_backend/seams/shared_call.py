"""What the parts of one call of shared attention have in common.

Shapes: as in `attention.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..errors import RequestError
from .exchange.heads import HeadPart, repeat_heads
from .forward import Forward
from .layout import TokenLayout


class SharedCall(NamedTuple):
    """A call of attention over shared tokens: the values that its parts have in common.

    The fields up to `parts` are the same for all calls with tensors of one shape in a forward.

    ranks: of the Ulysses group, on the sequence axis.
    lengths, seen_lengths: tokens of queries and of keys, by rank of the Ulysses group.
    ring_lengths: keys by rank of the ring.
    places: of fresh keys in the cache, if there is one.
    heads: of the queries. group: the number of query heads that share a key head.
    parts: in which heads are exchanged.
    forward: the forward that attends.
    kept: keys and values that every rank has.
    """

    ranks: range
    lengths: tuple[int, ...]
    seen_lengths: tuple[int, ...]
    ring_lengths: list[int]
    places: list[tuple[int, int]]
    heads: int
    group: int
    parts: tuple[HeadPart, ...]
    forward: Forward
    owner: object
    mask: torch.Tensor | None
    scale: float | None
    kept: Sequence[torch.Tensor]

    def encode(self, what: object, values: torch.Tensor) -> torch.Tensor:
        """Encodes what travels, if only what differs from the step before does."""
        differences = self.forward.differences
        return values if differences is None else differences.encode((self.owner, what), values)

    def decode(self, what: object, encoded: torch.Tensor) -> torch.Tensor:
        differences = self.forward.differences
        return encoded if differences is None else differences.decode((self.owner, what), encoded)

    def repeat(self, kv_BhKD: torch.Tensor, queries: range, keys: range) -> torch.Tensor:
        """Repeats each head of a part's keys or values for the queries that share it."""
        return kv_BhKD if self.group == 1 else repeat_heads(kv_BhKD, queries, keys, self.group)

    def own_mask(self, queries: range) -> torch.Tensor | None:
        """The mask of these heads."""
        mask, heads = self.mask, self.heads
        if mask is None or mask.ndim < 3 or mask.shape[-3] != heads or heads == 1:
            return mask
        return mask.narrow(-3, queries.start, len(queries))


def mask_of_group(
    mask: torch.Tensor, layout: TokenLayout, streams: tuple[str, ...], seen: tuple[str, ...], ranks: range
) -> torch.Tensor:
    """Cuts a mask over the whole joined streams (…, 1 or H, 1 or S, K) to the queries of the ranks of a group.

    Its columns are the keys of every rank in rank order, of the segments that run or that a cache has. Raises
    RequestError for a mask over anything else.
    """
    columns = layout.forward.running if layout.forward.cache is None else layout.slot.every_segment()
    tokens, keys = layout.total(streams), layout.total(seen)
    if mask.shape[-1] != keys or mask.shape[-2] not in (1, tokens):
        raise RequestError(
            f"An attention mask of shape {tuple(mask.shape)} does not cover the {tokens} tokens.",
            "Use ulysses=1, ring=1 and pipefusion=1.",
        )
    every_rank = range(layout.axis.degree)
    mask = mask.index_select(-1, layout.token_order(seen, every_rank, tuple(columns), mask.device))
    if mask.shape[-2] != 1:
        mask = mask.index_select(-2, layout.token_order(streams, ranks, tuple(layout.forward.running), mask.device))
    return mask
