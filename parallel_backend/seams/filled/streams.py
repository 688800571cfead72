"""Which tokens of a model's streams this rank holds, where streams lie joined and their lengths show only in the call.

Between blocks a stream is *filled*: it has its full length, this rank's tokens are where they belong, and the others
are zeros. So what the model does there, slices, joins and sums, runs as it is.
A stream of which this rank has no token gets one of padding within blocks, which nobody attends to: models do not look
for streams without tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ...errors import RequestError
from ...groups.collectives import gather
from ..layout import TokenLayout

Names = tuple[str, ...]


class Run(NamedTuple):
    """This rank's tokens of one segment of a stream: where they begin among all of the joined streams, and among its
    own of them."""

    whole: int
    local: int
    length: int
    is_padding: bool = False


class StreamLayout(TokenLayout):
    """A layout that learns the lengths of streams from what a block is given."""

    def learn(self, streams: Names, length: int) -> None:
        """So many tokens together have the streams, of which one may be new. Raises ValueError where that contradicts
        what is known, and RequestError for an image that cannot fall into patches."""
        segments = self.segments
        unknown = [name for name in streams if name not in segments]
        rest = length - sum(sum(segments[name]) for name in streams if name in segments)
        if len(unknown) > 1 or rest < 0 or (rest and not unknown):
            raise ValueError(f"{length} tokens are none of {'+'.join(streams)}, of which are known: {segments}.")
        for name in unknown:
            segments[name] = self.segments_of(name, rest)
            if name == self.image and self.patches > 1 and rest != self.forward.image_tokens:
                raise RequestError(
                    f"PipeFusion's patches are of the image's {self.forward.image_tokens} tokens alone, and this model "
                    f"has {rest} of them: reference images or padding are with them.",
                    "Use patches=1, or ulysses, ring, cfg or dp in place of pipefusion.",
                )

    def pieces(self, streams: Names) -> Iterator[tuple[int, int]]:
        """The running segments, stream by stream: where each begins among the joined streams, and its length."""
        start = 0
        for name in streams:
            for index, length in enumerate(self.segments[name]):
                if index in self.running:
                    yield start, length
                start += length

    def shares(self, streams: Names) -> Iterator[Run]:
        """What blocks get here, segment by segment."""
        start = local = 0
        for name in streams:
            before = local
            for place, length in self.pieces((name,)):
                sizes = self.axis.sizes(length)
                own = sizes[self.axis.index]
                yield Run(start + place + sum(sizes[: self.axis.index]), local, own)
                local += own
            if local == before and self.total((name,)):
                yield Run(start, local, 1, is_padding=True)
                local += 1
            start += self.total((name,))

    def runs(self, streams: Names) -> Iterator[Run]:
        """This rank's tokens, segment by segment."""
        return (run for run in self.shares(streams) if not run.is_padding)

    def padded(self, segments: list[int], running: list[int]) -> int:
        """How many tokens blocks get here, of those that run of a stream's segments of these lengths."""
        own = self.share([segments[index] for index in running], self.axis.index)
        return own or min(1, sum(segments))

    def drop_padding(self, local: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """A tensor of what blocks get here, without padding."""
        if not any(run.is_padding for run in self.shares(streams)):
            return local
        return torch.cat([local.narrow(dim, run.local, run.length) for run in self.runs(streams)], dim)

    def put_padding(self, own: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """`drop_padding`'s inverse, with zeros."""
        shares = list(self.shares(streams))
        if not any(run.is_padding for run in shares):
            return own
        shape = [*own.shape[:dim], 1, *own.shape[dim + 1 :]]
        parts = iter(own.split([run.length for run in shares if not run.is_padding], dim))
        return torch.cat([own.new_zeros(shape) if run.is_padding else next(parts) for run in shares], dim)

    def cut(self, filled: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """This rank's tokens of joined streams, with padding."""
        self.learn(streams, filled.shape[dim])
        parts = [filled.narrow(dim, run.whole, run.length) for run in self.shares(streams)]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, dim)

    def cut_last(self, values: torch.Tensor, stream: str, dim: int) -> torch.Tensor:
        """Those of one value for each of a stream's last tokens that are for this rank's."""
        before = self.total((stream,)) - values.shape[dim]
        ranges = [(run.whole - before, run.whole + run.length - before) for run in self.runs((stream,))]
        parts = [values.narrow(dim, max(start, 0), max(stop, 0) - max(start, 0)) for start, stop in ranges]
        return torch.cat(parts, dim) if parts else values.narrow(dim, 0, 0)

    def fill(self, local: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """`cut`'s inverse, with zeros for other ranks' tokens."""
        shape = list(local.shape)
        shape[dim] = self.total(streams)
        filled = local.new_zeros(shape)
        for run in self.runs(streams):
            filled.narrow(dim, run.whole, run.length).copy_(local.narrow(dim, run.local, run.length))
        return filled

    def gather(self, filled: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """The streams with every rank's tokens of the running segments, on every rank, from what is filled with this
        one's."""
        pieces = list(self.pieces(streams))
        parts = [filled.narrow(dim, run.whole, run.length) for run in self.runs(streams)]
        found = [gather(part, dim, length, self.axis) for part, (_, length) in zip(parts, pieces, strict=True)]
        if len(found) == 1 and pieces[0] == (0, filled.shape[dim]):
            return found[0].contiguous()
        whole = torch.zeros_like(filled)
        for part, (start, length) in zip(found, pieces, strict=True):
            whole.narrow(dim, start, length).copy_(part)
        return whole

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
        return sum(min(max(place - run.whole, 0), run.length) for run in self.shares(streams))
