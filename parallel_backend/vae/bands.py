"""Splits the rows of a picture over the ranks of an axis, and exchanges border rows between neighbours.

The rows of a latent or an image are in the last dim but one (ROWS): (B, C, H, W) or (B, C, T, H, W).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ..groups.collectives import gather
from ..groups.mesh import Axis

ROWS = -2


class RowBands:
    """The split of the latent's rows over the ranks of an axis, by `Axis.sizes`.

    At every level of the VAE a band is this rank's latent rows times the level's scale. (Image rows beyond a multiple
    of the VAE's scale belong to the last rank.)
    """

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.rows = 0  # of the whole latent; 0 while nothing is split

    @property
    def sizes(self) -> list[int]:
        """The latent rows of each rank."""
        return self.axis.sizes(self.rows)

    @property
    def local_rows(self) -> int:
        return self.sizes[self.axis.index]

    @property
    def is_first(self) -> bool:
        return not self.axis.index

    @property
    def is_last(self) -> bool:
        return self.axis.index + 1 == self.axis.degree

    @contextmanager
    def of(self, rows: int) -> Iterator[None]:
        """While entered, the layers treat their input as this rank's band of a latent with this many rows."""
        self.rows = rows
        try:
            yield
        finally:
            self.rows = 0

    def whole_rows(self, rows: int) -> int:
        """Returns the rows of the whole, at the level where this rank's band has this many rows."""
        return rows // self.local_rows * self.rows

    def part(self, whole: torch.Tensor) -> torch.Tensor:
        """Returns this rank's band of a tensor with all rows."""
        scale = whole.shape[ROWS] // self.rows
        start = sum(self.sizes[: self.axis.index])
        return whole.narrow(ROWS, start * scale, self.local_rows * scale)

    def gather_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Gathers the tokens (…, tokens, D) of all ranks, in rank order. Each row has the same number of tokens."""
        split = tokens.unflatten(ROWS, (self.local_rows, -1))
        return gather(split, split.ndim - 3, self.rows, self.axis).flatten(-3, -2)


class BorderRows:
    """An exchange of border rows with the neighbours. The constructor starts it, and `wait` ends it."""

    def __init__(self, band: torch.Tensor, above: int, below: int, axis: Axis) -> None:
        """above, below: how many rows this rank needs there. Every band must have as many."""
        rows = band.shape[ROWS]
        first, last = band.narrow(ROWS, 0, below).contiguous(), band.narrow(ROWS, rows - above, above).contiguous()
        self.above: torch.Tensor | None = None
        self.below: torch.Tensor | None = None
        self.sent = first, last  # kept alive until they are delivered
        transfers = []
        if axis.index:
            previous = axis.global_rank(axis.index - 1)
            self.above = torch.empty_like(last)
            transfers += [(dist.isend, first, previous), (dist.irecv, self.above, previous)]
        if axis.index + 1 < axis.degree:
            following = axis.global_rank(axis.index + 1)
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
