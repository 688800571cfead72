"""Which tokens of a model's streams this rank holds, where streams lie joined and their lengths show only in the call.

Between blocks a stream is *filled*: it has its full length, this rank's tokens are where they belong, and the others
are zeros. So what the model does there, slices, joins and sums, runs as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ..groups.collectives import gather
from ..groups.mesh import Axis
from ..groups.mesh_layout import shard_sizes
from .forward import ForwardSlot
from .layout import TokenLayout

Names = tuple[str, ...]


class Run(NamedTuple):
    """This rank's tokens of one stream: where they begin among all of the joined streams, and among its own of them."""

    whole: int
    local: int
    length: int


class StreamLayout(TokenLayout):
    """A layout that learns the lengths of streams from what a block is given."""

    def __init__(self, axis: Axis, slot: ForwardSlot) -> None:
        super().__init__("", axis, slot)

    def learn(self, streams: Names, length: int) -> None:
        """So many tokens together have the streams, of which one may be new. Raises ValueError where that contradicts
        what is known."""
        segments = self.segments
        unknown = [name for name in streams if name not in segments]
        rest = length - sum(segments[name][0] for name in streams if name in segments)
        if len(unknown) > 1 or rest < 0 or (rest and not unknown):
            raise ValueError(f"{length} tokens are none of {'+'.join(streams)}, of which are known: {segments}.")
        if unknown:
            segments[unknown[0]] = [rest]

    def total(self, streams: Names) -> int:
        """The tokens of these streams on all ranks."""
        return sum(self.segments[name][0] for name in streams)

    def runs(self, streams: Names) -> Iterator[Run]:
        """This rank's tokens, stream by stream."""
        whole = local = 0
        for name in streams:
            length = self.segments[name][0]
            sizes = shard_sizes(length, self.axis.degree)
            own = sizes[self.axis.index]
            yield Run(whole + sum(sizes[: self.axis.index]), local, own)
            whole, local = whole + length, local + own

    def cut(self, filled: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """This rank's tokens of joined streams."""
        self.learn(streams, filled.shape[dim])
        parts = [filled.narrow(dim, run.whole, run.length) for run in self.runs(streams)]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, dim)

    def fill(self, local: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """`cut`'s inverse, with zeros for other ranks' tokens."""
        shape = list(local.shape)
        shape[dim] = self.total(streams)
        filled = local.new_zeros(shape)
        for run in self.runs(streams):
            filled.narrow(dim, run.whole, run.length).copy_(local.narrow(dim, run.local, run.length))
        return filled

    def gather(self, filled: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """The streams with every rank's tokens, on every rank, from what is filled with this one's."""
        parts = [filled.narrow(dim, run.whole, run.length) for run in self.runs(streams)]
        lengths = [self.segments[name][0] for name in streams]
        whole = [gather(part, dim, length, self.axis) for part, length in zip(parts, lengths, strict=True)]
        return whole[0].contiguous() if len(whole) == 1 else torch.cat(whole, dim)

    def cut_ranges(self, ranges: Sequence[Sequence[int]], streams: Names) -> list[tuple[int, ...]]:
        """Ranges (start, stop, …) of the joined streams as ranges of this rank's tokens. A stop of None is the end."""
        found = []
        for run in self.runs(streams):
            end = run.whole + run.length
            for start, stop, *rest in ranges:
                first, last = max(start, run.whole), min(end if stop is None else stop, end)
                if first < last:
                    shift = run.local - run.whole
                    found.append((first + shift, last + shift, *rest))
        return sorted(found)

    def cut_place(self, place: int, streams: Names) -> int:
        """How many of this rank's tokens lie before a place of the joined streams."""
        return sum(min(max(place - run.whole, 0), run.length) for run in self.runs(streams))
