"""Splits the rows of a picture over the ranks of an axis, and exchanges border rows between neighbours.

The rows of a latent or an image are in the last dim but one (ROWS): (B, C, H, W) or (B, C, T, H, W).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.distributed as dist

from ...groups.collectives import gather
from ...groups.mesh import Axis

ROWS = -2


class RowBands:
    """The split of a picture's rows over the ranks of an axis, by `Axis.sizes`.

    What is split are the rows of the level with the fewest: a VAE's latent, or a UNet's middle. At every other level a
    band has this rank's rows there, times the level's scale. The last band has the rows that are left.

    A rank without rows computes rows of zeros, as many as a row of that level has elsewhere. Nobody reads them.
    """

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.rows = 0  # of the level with the fewest; 0 while nothing is split
        self.is_undivided = False  # whether the first rank has all of them

    @property
    def sizes(self) -> list[int]:
        """Each rank's rows."""
        return [self.rows, *[0] * (self.axis.degree - 1)] if self.is_undivided else self.axis.sizes(self.rows)

    @property
    def local_rows(self) -> int:
        return self.sizes[self.axis.index]

    @property
    def smallest(self) -> int:
        """The rows of the smallest band."""
        return min(filter(None, self.sizes))

    @property
    def previous(self) -> int | None:
        """The index of the rank with the rows above. None at the border of the whole, and on a rank without rows."""
        others = [index for index, size in enumerate(self.sizes[: self.axis.index]) if size]
        return others[-1] if others and self.local_rows else None

    @property
    def following(self) -> int | None:
        """Likewise, with the rows below."""
        first = self.axis.index + 1
        others = [first + place for place, size in enumerate(self.sizes[first:]) if size]
        return others[0] if others and self.local_rows else None

    @property
    def is_first(self) -> bool:
        return self.previous is None

    @property
    def is_last(self) -> bool:
        return self.following is None

    @contextmanager
    def of(self, rows: int) -> Iterator[None]:
        """While entered, the layers treat their input as this rank's band of a picture with this many rows."""
        self.begin(rows)
        try:
            yield
        finally:
            self.end()

    def begin(self, rows: int, is_undivided: bool = False) -> None:
        self.rows, self.is_undivided = rows, is_undivided

    def end(self) -> None:
        self.rows = 0

    def whole_rows(self, rows: int) -> int:
        """Returns the rows of the whole, at the level where this rank's band has this many rows."""
        return rows // self.local_rows * self.rows

    def part(self, whole: torch.Tensor) -> torch.Tensor:
        """Returns this rank's band of a tensor with all rows."""
        scale = whole.shape[ROWS] // self.rows
        start = sum(self.sizes[: self.axis.index])
        return whole.narrow(ROWS, start * scale, self.local_rows * scale)

    def level_sizes(self, scale: int, rows: int) -> list[int]:
        """Returns each rank's rows at the level of this scale, where the whole has `rows`."""
        if self.is_undivided:
            return [rows, *[0] * (self.axis.degree - 1)]
        ends = [0, *(min(rows, scale * sum(self.sizes[: index + 1])) for index in range(self.axis.degree))]
        return [stop - start for start, stop in pairwise(ends)]

    def cut(self, whole: torch.Tensor, scale: int) -> torch.Tensor:
        """Returns this rank's band of a tensor at the level of this scale."""
        sizes = self.level_sizes(scale, whole.shape[ROWS])
        if not self.local_rows:
            return whole.new_zeros((*whole.shape[:ROWS], scale, *whole.shape[ROWS + 1 :]))
        return whole.narrow(ROWS, sum(sizes[: self.axis.index]), sizes[self.axis.index]).contiguous()

    def cut_pixels(self, whole: torch.Tensor, scale: int) -> torch.Tensor:
        """Returns this rank's band of a tensor with so many rows for each of the level with the fewest. The last band
        has the rows that are left, too."""
        sizes = [size * scale for size in self.sizes]
        sizes[-1] += whole.shape[ROWS] - sum(sizes)
        return whole.split(sizes, ROWS)[self.axis.index]

    def gather(self, band: torch.Tensor, scale: int, rows: int, width: int) -> torch.Tensor:
        """The inverse of `cut`: returns all `rows` rows of that level, on every rank. width: of a row, in numbers."""
        if self.is_undivided:
            whole = band if self.local_rows else band.new_empty((*band.shape[:ROWS], rows, width))
            dist.broadcast(whole := whole.contiguous(), self.axis.global_rank(0), group=self.axis.group)
            return whole
        if not self.local_rows:
            band = band.narrow(ROWS, 0, 0)
        missing = scale * self.local_rows - band.shape[ROWS]
        if missing:
            band = torch.cat((band, band.new_zeros((*band.shape[:ROWS], missing, band.shape[-1]))), ROWS)
        split = band.unflatten(ROWS, (self.local_rows, scale))
        return gather(split, split.ndim - 3, self.rows, self.axis).flatten(-3, -2).narrow(ROWS, 0, rows)

    def gather_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Gathers the tokens (…, tokens, D) of all ranks, in rank order. Each row has the same number of tokens."""
        split = tokens.unflatten(ROWS, (self.local_rows, -1))
        return gather(split, split.ndim - 3, self.rows, self.axis).flatten(-3, -2)


class BorderRows:
    """An exchange of border rows with the neighbours. The constructor starts it, and `wait` ends it."""

    def __init__(self, band: torch.Tensor, above: int, below: int, bands: RowBands) -> None:
        """above, below: how many rows this rank needs there. Every band must have as many."""
        rows, axis = band.shape[ROWS], bands.axis
        first, last = band.narrow(ROWS, 0, below).contiguous(), band.narrow(ROWS, rows - above, above).contiguous()
        self.above: torch.Tensor | None = None
        self.below: torch.Tensor | None = None
        self.sent = first, last  # kept alive until they are delivered
        transfers = []
        if bands.previous is not None:
            previous = axis.global_rank(bands.previous)
            self.above = torch.empty_like(last)
            transfers += [(dist.isend, first, previous), (dist.irecv, self.above, previous)]
        if bands.following is not None:
            following = axis.global_rank(bands.following)
            self.below = torch.empty_like(first)
            transfers += [(dist.isend, last, following), (dist.irecv, self.below, following)]
        self.timeline = axis.timeline
        with self.timeline.communication("border rows, send"):
            sides = [dist.P2POp(run, rows, peer, axis.group) for run, rows, peer in transfers if rows.numel()]
            self.works = dist.batch_isend_irecv(sides) if sides else []

    def wait(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Returns the rows above and below the band; None at the border of the whole."""
        with self.timeline.communication("border rows, receive"):
            for work in self.works:
                work.wait()
        return self.above, self.below
