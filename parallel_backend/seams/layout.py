"""Which tokens of the running forward this rank holds.

A stream's tokens fall into segments: one for the whole stream, or PipeFusion's patches, of which the first carries
all of the text. Every segment is shared over the sequence axis on its own, so a rank holds the same tokens of a patch
whether the patch runs alone or with the others, and its stale keys and values stay in place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from ..groups.collectives import gather, shard
from ..groups.mesh import Axis
from ..groups.mesh_layout import shard_sizes
from ..models.spec import SideInput
from .forward import Forward, ForwardSlot

TOKEN_DIM = 1


class TokenLayout:
    """Lengths of the streams' segments in the forward that runs, and this rank's share of them.

    image: the stream that has tokens in all segments. axis: the sequence axis. slot: where the forward is.
    """

    def __init__(self, image: str, axis: Axis, slot: ForwardSlot) -> None:
        self.image = image
        self.axis = axis
        self.slot = slot
        self.patches = slot.patches

    @property
    def forward(self) -> Forward:
        """The one that runs."""
        return self.slot.forward

    @property
    def running(self) -> list[int]:
        return self.slot.forward.running

    @property
    def segments(self) -> dict[str, list[int]]:
        return self.slot.forward.segments

    def begin(self, lengths: dict[str, int]) -> None:
        """The forward that runs has reached the blocks, with streams of these full lengths."""
        self.forward.segments = {stream: self.segments_of(stream, length) for stream, length in lengths.items()}
        self.forward.sides, self.forward.orders, self.forward.gathered = {}, {}, False

    def segments_of(self, stream: str, length: int) -> list[int]:
        """The lengths of a stream's segments: the image's are all alike, and the rest goes with the first."""
        return shard_sizes(length, self.patches) if stream == self.image else [length, *[0] * (self.patches - 1)]

    def bounds(self, segment: int) -> tuple[int, int]:
        """Where a segment of the image lies among its tokens."""
        lengths = self.segments[self.image]
        return sum(lengths[:segment]), sum(lengths[: segment + 1])

    def local_length(self, stream: str, rank: int, running: list[int] | None = None) -> int:
        """Tokens of a stream that a rank of the sequence axis holds, of the running segments or of those given."""
        chosen = self.running if running is None else running
        return self.share([self.segments[stream][index] for index in chosen], rank)

    def total(self, streams: tuple[str, ...]) -> int:
        """The tokens of these streams on all ranks."""
        return sum(sum(self.segments[name]) for name in streams)

    def share(self, lengths: list[int], rank: int) -> int:
        """Tokens of segments of these lengths that a rank of the sequence axis holds."""
        return sum(self.axis.sizes(length)[rank] for length in lengths)

    def lengths_by_rank(self, streams: tuple[str, ...], running: list[int] | None = None) -> list[int]:
        """Tokens of these streams together, by rank of the sequence axis."""
        ranks = range(self.axis.degree)
        return [sum(self.local_length(stream, rank, running) for stream in streams) for rank in ranks]

    def take(self, whole: torch.Tensor, stream: str, dim: int = TOKEN_DIM) -> torch.Tensor:
        """This rank's share of the running segments of a whole stream."""
        parts = whole.split(self.segments[stream], dim)
        shares = [shard(parts[index], dim, self.axis) for index in self.running]
        return shares[0] if len(shares) == 1 else torch.cat(shares, dim)

    def take_side_input(self, value: Any, side: SideInput) -> Any:
        """This rank's share of a per-token tensor, or of each in a tuple, that runs over `side.streams` in turn.

        A text mask is for all keys: it stays whole, and gets its ones for the image tokens that are not here.
        """
        if side.text_mask:
            absent = sum(self.segments[self.image]) - self.local_length(self.image, self.axis.index)
            return F.pad(value, (0, 0) * (value.ndim - 1 - side.dim) + (0, absent), value=1)
        if side.per_stream:
            items = zip(value, side.streams, strict=True)
            return tuple(self.take_side_input(item, replace(side, streams=(s,), per_stream=False)) for item, s in items)
        if isinstance(value, (tuple, list)):
            return type(value)(self.take_side_input(item, side) for item in value)
        parts = value.split([sum(self.segments[stream]) for stream in side.streams], side.dim)
        taken = (self.take(part, stream, side.dim) for part, stream in zip(parts, side.streams, strict=True))
        return torch.cat(list(taken), side.dim)

    def restore(self, local_BLD: torch.Tensor) -> torch.Tensor:
        """The whole image stream from every rank's share: `take`'s inverse. Segments that do not run are zeros."""
        lengths = self.segments[self.image]
        running = [lengths[index] for index in self.running]
        if len(running) == 1:
            whole = gather(local_BLD, TOKEN_DIM, running[0], self.axis)
        else:
            shares = local_BLD.split([self.axis.own_size(length) for length in running], TOKEN_DIM)
            pieces = zip(shares, running, strict=True)
            whole = torch.cat([gather(share, TOKEN_DIM, length, self.axis) for share, length in pieces], TOKEN_DIM)
        if len(running) == self.patches:
            return whole
        start, stop = self.bounds(self.running[0])
        padded = whole.new_zeros(len(whole), sum(lengths), whole.shape[2])
        padded[:, start:stop] = whole
        return padded

    def token_order(
        self, streams: tuple[str, ...], ranks: range, running: list[int], device: torch.device
    ) -> torch.Tensor:
        """Where the tokens of these ranks, of the segments given, stand in the whole streams joined; in rank order.

        Made on the device, once a forward: to bring it there would have the host wait.
        """
        key = (streams, ranks, tuple(running), device)
        if key in self.forward.orders:
            return self.forward.orders[key]
        starts = {}
        for stream in streams:
            starts[stream] = sum(sum(self.segments[before]) for before in starts)
        pieces = []
        for rank in ranks:
            for stream in streams:
                for index in running:
                    sizes = self.axis.sizes(self.segments[stream][index])
                    start = starts[stream] + sum(self.segments[stream][:index]) + sum(sizes[:rank])
                    pieces.append(torch.arange(start, start + sizes[rank], device=device))
        self.forward.orders[key] = torch.cat(pieces)
        return self.forward.orders[key]

    def cache_places(self, streams: tuple[str, ...], ranks: range) -> list[tuple[int, int]]:
        """Where the running segments' tokens lie among all segments' tokens of these ranks: (start, length), in order.

        Both follow one order: rank by rank, in a rank stream by stream, in a stream segment by segment.
        """
        places, start = [], 0
        for rank in ranks:
            for stream in streams:
                for index, length in enumerate(self.segments[stream]):
                    share = self.axis.sizes(length)[rank]
                    if index in self.running:
                        places.append((start, share))
                    start += share
        return places
