"""Sparse self-attention for video: which tokens attend to which, as a static pattern in space and time.

Radial attention (https://arxiv.org/abs/2506.19852): attention weights fall with the distance in time. A token attends
to all tokens of its own frame and of the frames next to it, and to all of the first frame. Of other frames it attends
to the places near its own, in windows that halve as the distance in time doubles. Tokens of other streams, such as
text, attend to all tokens, and all tokens attend to them.

The pattern is of tiles: tokens of the picture that follow one another in the model's order. A tile attends to another
if any of its tokens does by the rule above. So the pattern does not depend on how ranks share the tokens, and kernels
skip whole blocks.

Shapes: B batch, h heads, S tokens in the order of the attention call, D head dim, T tiles, and one entry more for the
tokens of other streams.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ...device import is_accelerator
from ...plan import OFF
from ...video import WIDTHS, Video, tile_pairs
from .flex import build_block_mask, flex_attention

if TYPE_CHECKING:
    from ..layout import TokenLayout

QUERIES = 1024  # on a CPU, the mask of this many queries is in memory at a time
MOST_PATTERNS = 4  # that are kept: cond and uncond may have other lengths, and so may a second model


class SparsePattern:
    """The pattern for the tokens of one kind of attention call, in the order in which they come there.

    pairs: which tiles attend to which, (T + 1, T + 1). tile_of_S: each token's tile.
    """

    def __init__(self, pairs: torch.Tensor, tile_of_S: torch.Tensor) -> None:
        self.pairs = pairs
        self.tile_of_S = tile_of_S

    @cached_property
    def block_mask(self) -> Any:
        return build_block_mask(self.pairs, self.tile_of_S)

    def attend(
        self, q_BhSD: torch.Tensor, k_BhSD: torch.Tensor, v_BhSD: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Computes attention under the pattern, BhSD: by torch's flex attention on accelerators, else by
        `attend_by_parts`."""
        if is_accelerator(q_BhSD.device):
            return flex_attention(q_BhSD, k_BhSD, v_BhSD, self.block_mask, scale)
        return self.attend_by_parts(q_BhSD, k_BhSD, v_BhSD, scale)

    def attend_by_parts(
        self, q_BhSD: torch.Tensor, k_BhSD: torch.Tensor, v_BhSD: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Computes some queries at a time, with the keys that any of them attends to."""
        parts = []
        for start in range(0, q_BhSD.shape[2], QUERIES):
            rows = slice(start, start + QUERIES)
            mask = self.pairs[self.tile_of_S[rows]][:, self.tile_of_S]
            seen = mask.any(0).nonzero().flatten()
            keys, values = (each.index_select(2, seen) for each in (k_BhSD, v_BhSD))
            mask = mask.index_select(1, seen)
            parts.append(F.scaled_dot_product_attention(q_BhSD[:, :, rows], keys, values, attn_mask=mask, scale=scale))
        return torch.cat(parts, 2)


class SparsePatterns:
    """The patterns of a model's attention calls under a plan. They are built once for each size, and kept."""

    def __init__(self, sparse: str, layout: TokenLayout) -> None:
        self.sparse = sparse
        self.layout = layout
        self.kept: dict[tuple, SparsePattern] = {}

    def find(
        self,
        streams: tuple[str, ...],
        seen: tuple[str, ...],
        ranks: range,
        device: torch.device,
        is_masked: bool = False,
    ) -> SparsePattern | None:
        """Returns the pattern of a call in which these ranks' tokens of `streams` attend to those of `seen`. None if
        the pattern leaves nothing out: if the forward is dense, if the call is not self-attention of the picture, or
        if the model masks it, which the forward is told. Raises RequestError for a picture that has other tokens
        beside frames."""
        forward = self.layout.forward
        if self.sparse == OFF or forward.video is None or streams != seen or self.layout.image not in streams:
            return None
        if is_masked:
            forward.is_masked = True
            return None
        name = f"sparse.{'+'.join(streams)}"
        if name not in forward.sides:
            forward.sides[name] = (None, self.of_size(forward.video, streams, ranks, device))
        return forward.sides[name][1]

    def of_size(self, video: Video, streams: tuple[str, ...], ranks: range, device: torch.device) -> SparsePattern:
        layout = self.layout
        sizes = tuple(tuple(layout.lengths_by_rank((name,))) for name in streams)
        key = (video, streams, sizes, device)
        if key not in self.kept:
            while len(self.kept) >= MOST_PATTERNS:
                del self.kept[next(iter(self.kept))]
            self.kept[key] = self.build(video.of_stream(layout.total((layout.image,))), streams, ranks, device)
        return self.kept[key]

    def build(self, video: Video, streams: tuple[str, ...], ranks: range, device: torch.device) -> SparsePattern:
        pairs = tile_pairs(video, WIDTHS[self.sparse], device)
        others = len(pairs)  # the entry of other streams' tokens
        every = torch.ones(others + 1, others + 1, dtype=torch.bool, device=device)
        every[:others, :others] = pairs
        start = self.layout.total(streams[: streams.index(self.layout.image)])
        order_S = self.layout.token_order(streams, ranks, self.layout.running, device) - start
        is_image = (order_S >= 0) & (order_S < video.frames * video.tokens)
        return SparsePattern(every, torch.where(is_image, order_S // video.tile, others))
