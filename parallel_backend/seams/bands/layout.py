"""Which pixels this rank has at each level of a UNet. Attention sees them as tokens, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ...errors import RequestError
from ...hooks import Hooks
from ..forward import ForwardSlot
from ..layout import Names, TokenLayout
from .rows import ROWS, RowBands

WITHOUT_BANDS = "Use ulysses=1 and ring=1, and cfg or dp in their place."


class Level(NamedTuple):
    """height, width: of the whole picture there. scale: of a band's rows there, see `RowBands`."""

    height: int
    width: int
    scale: int


class RowLayout(TokenLayout):
    """The pixels of a picture's levels, by rank. The stream "0" has those of the latents, "1" those of the next level.

    Each level has half the rows and columns of the one before, rounded up.
    """

    def __init__(self, bands: RowBands, levels: int, slot: ForwardSlot) -> None:
        super().__init__("", bands.axis, slot)
        self.bands = bands
        self.count = levels
        self.levels: list[Level] = []

    def begin(self, height: int, width: int) -> bool:
        """Begins a forward of latents with these sides. Returns whether their rows are shared.

        They are not if a rank would have no row of the last level, or if they are as narrow as one of its pixels: then
        several levels of a band could have as many pixels, and could not be told apart.
        """
        strides = [2**level for level in range(self.count)]
        self.levels = [Level(-(-height // stride), -(-width // stride), strides[-1] // stride) for stride in strides]
        rows = self.levels[-1].height
        if not all(self.axis.sizes(rows)) or width <= strides[-1] // 2:
            return False
        self.bands.rows = rows
        return True

    def cut_rows(self, whole: torch.Tensor, times: int = 1) -> torch.Tensor:
        """Returns this rank's band of a tensor that has the sides of a level, or sides as many times as long. Raises
        RequestError for another one."""
        for level in self.levels:
            if tuple(whole.shape[ROWS:]) == (times * level.height, times * level.width):
                return self.bands.cut(whole, times * level.scale).contiguous()
        raise RequestError(
            f"A tensor of shape {tuple(whole.shape)} has the rows of no level of the model.", WITHOUT_BANDS
        )

    def cut_residual(self, whole: torch.Tensor) -> torch.Tensor | None:
        """Returns this rank's band of what a network beside the model adds to a level. If it fits none, a single row is
        added to each row, so it stays whole. What else fits none is left out by the model's class, so it is None.
        Raises RequestError for a column that the class adds to each column of a level."""
        rows, width = whole.shape[ROWS:]
        if any(rows == level.height and width in (1, level.width) for level in self.levels):
            return self.cut_rows(whole)
        return whole if rows == 1 else None

    def gather_rows(self, band: torch.Tensor) -> torch.Tensor:
        """The inverse of `cut_rows`, on every rank. Raises RequestError for a tensor of no level."""
        level = self.levels[int(self.stream_of(band.shape[ROWS:].numel()))]
        return self.bands.gather(band, level.scale, level.height)

    def gather_pixels(self, own: torch.Tensor) -> torch.Tensor:
        """Returns the tokens (B, H, tokens, D) of all pixels of the level of which this rank has these."""
        level = self.levels[int(self.stream_of(own.shape[-2]))]
        rows = own.unflatten(-2, (-1, level.width)).flatten(-2)
        whole = self.bands.gather(rows, level.scale, level.height)
        return whole.unflatten(-1, (level.width, -1)).flatten(-3, -2)

    def cut_pixels(self, whole: torch.Tensor) -> torch.Tensor:
        """The inverse of `gather_pixels`. Raises RequestError for tokens of no level."""
        for level in self.levels:
            if whole.shape[-2] == level.height * level.width:
                rows = self.bands.cut(whole.unflatten(-2, (-1, level.width)).flatten(-2), level.scale)
                return rows.unflatten(-1, (level.width, -1)).flatten(-3, -2)
        raise RequestError(f"{whole.shape[-2]} tokens are the pixels of no level of the model.", WITHOUT_BANDS)

    @contextmanager
    def showing_whole(self) -> Iterator[None]:
        """While entered, torch's functions take pictures with all rows."""
        with self.bands.of(0), Hooks() as hooks:
            hooks.replace(self.slot, "has_all_tokens", True)
            yield

    def stream_of(self, tokens: int) -> str:
        """Returns the stream of which this rank has so many tokens. Raises RequestError if there is none."""
        for stream in map(str, range(self.count)):
            if tokens == self.lengths_by_rank((stream,))[self.axis.index]:
                return stream
        raise RequestError(f"A layer has {tokens} pixels, as many as no level of this rank.", WITHOUT_BANDS)

    def lengths_by_rank(self, streams: Names, every: bool = False) -> list[int]:
        """Returns the pixels of a level by rank."""
        level = self.levels[int(streams[0])]
        return [rows * level.width for rows in self.bands.level_sizes(level.scale, level.height)]

    def total(self, streams: Names) -> int:
        """Returns the pixels of a level on all ranks."""
        return sum(self.lengths_by_rank(streams))
