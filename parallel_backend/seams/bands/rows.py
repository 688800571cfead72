"""Splits the rows of a picture over the ranks of an axis, and exchanges border rows between neighbours.

The rows of a latent or an image are in the last dim but one (ROWS): (B, C, H, W) or (B, C, T, H, W).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch

from ...groups.collectives import exchange_messages, gather
from ...groups.mesh import Axis
from ...hooks import Hooks

ROWS = -2


class RowBands:
    """The split of a picture's rows over the ranks of an axis, by `Axis.sizes`.

    What is split are the rows of the level with the fewest: a VAE's latent, or a UNet's middle. At every other level a
    band has this rank's rows there, times the level's scale. The last band has the rows that are left. Every rank has
    rows: callers split nothing of which a rank would have none.
    """

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.rows = 0  # of the level with the fewest; 0 while nothing is split
        self.is_first, self.is_last = axis.index == 0, axis.index == axis.degree - 1

    @property
    def sizes(self) -> list[int]:
        """Each rank's rows."""
        return self.axis.sizes(self.rows)

    @property
    def local_rows(self) -> int:
        return self.sizes[self.axis.index]

    @property
    def smallest(self) -> int:
        """The rows of the smallest band."""
        return min(self.sizes)

    @contextmanager
    def of(self, rows: int) -> Iterator[None]:
        """While entered, the layers treat their input as this rank's band of a picture with this many rows; of 0, as a
        whole one."""
        with Hooks() as hooks:
            hooks.replace(self, "rows", rows)
            yield

    def level_sizes(self, scale: int, rows: int) -> list[int]:
        """Returns each rank's rows at the level of this scale, where the whole has `rows`. The last rank has those that
        are left."""
        ends = [0, *(min(rows, scale * sum(self.sizes[:index])) for index in range(1, self.axis.degree)), rows]
        return [stop - start for start, stop in pairwise(ends)]

    def cut(self, whole: torch.Tensor, scale: int) -> torch.Tensor:
        """Returns this rank's band of a tensor at the level of this scale."""
        sizes = self.level_sizes(scale, whole.shape[ROWS])
        return whole.narrow(ROWS, sum(sizes[: self.axis.index]), sizes[self.axis.index])

    def gather(self, band: torch.Tensor, scale: int, rows: int) -> torch.Tensor:
        """The inverse of `cut`: returns all `rows` rows of that level, on every rank."""
        missing = scale * self.local_rows - band.shape[ROWS]
        if missing:
            band = torch.cat((band, band.new_zeros((*band.shape[:ROWS], missing, band.shape[-1]))), ROWS)
        return self.gather_tokens(band).narrow(ROWS, 0, rows)

    def check(self, band: torch.Tensor, scale: int, model: torch.nn.Module) -> None:
        """Raises RuntimeError if what a model returned is not this rank's band at the level of this scale."""
        if band.shape[ROWS] != scale * self.local_rows:
            raise RuntimeError(
                f"{type(model).__name__} returned {band.shape[ROWS]} rows for {self.local_rows} latent rows; {scale} "
                "for each were expected."
            )

    def gather_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Gathers the tokens (…, tokens, D) of all ranks, in rank order. Each row has the same number of tokens."""
        split = tokens.unflatten(ROWS, (self.local_rows, -1))
        return gather(split, split.ndim - 3, self.rows, self.axis).flatten(-3, -2)


Borders = tuple[torch.Tensor | None, torch.Tensor | None]


def exchange_borders(band: torch.Tensor, above: int, below: int, bands: RowBands) -> Callable[[], Borders]:
    """Starts an exchange of border rows with the neighbours. Returns a function that waits for it, and returns the rows
    above and below the band; None at the border of the whole.

    above, below: how many rows this rank needs there. Every band must have as many.
    """
    rows, axis = band.shape[ROWS], bands.axis
    first, last = band.narrow(ROWS, 0, below).contiguous(), band.narrow(ROWS, rows - above, above).contiguous()
    upper = None if bands.is_first else torch.empty_like(last)
    lower = None if bands.is_last else torch.empty_like(first)
    sides = ((first, upper, axis.index - 1), (last, lower, axis.index + 1))
    sent = [(own, index) for own, other, index in sides if other is not None]
    received = [(other, index) for _, other, index in sides if other is not None]
    arrive = exchange_messages("border rows", axis, sent, received)

    def wait() -> Borders:
        arrive()
        return upper, lower

    return wait
