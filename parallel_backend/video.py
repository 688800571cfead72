"""The grid of a video's tokens, and which pairs of them attend under a plan's sparse attention.

T is the number of tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .errors import RequestError
from .plan import OFF, RADIAL, RADIAL_NARROW

# By the plan's `sparse`, how far a token sees to either side in frames two or three away, as a part of a frame. It
# halves as the distance doubles.
WIDTHS = {RADIAL: 0.5, RADIAL_NARROW: 0.125}
LARGEST_TILE = 128  # tokens; a block of the GPU's kernel
TILES_OF_A_FRAME = 8  # at least, so that small pictures are sparse, too


@dataclass(frozen=True)
class Video:
    """The grid of a picture's tokens: frames, and tokens of a frame."""

    frames: int
    tokens: int

    @property
    def tile(self) -> int:
        """Returns the tokens of a tile, a power of two."""
        most = max(1, self.tokens // TILES_OF_A_FRAME)
        return min(LARGEST_TILE, 1 << (most.bit_length() - 1))

    def of_stream(self, tokens: int) -> Video:
        """Returns the grid of a stream that may have more frames, such as reference frames. Raises RequestError if it
        has other tokens beside frames."""
        if tokens < self.frames * self.tokens or tokens % self.tokens:
            raise RequestError(
                f"Sparse attention needs a picture of whole frames, and this one has {tokens} tokens for {self.frames} "
                f"frames of {self.tokens}.",
                f"Use sparse={OFF}.",
            )
        return Video(tokens // self.tokens, self.tokens)


def video_of(latents: Sequence[int], sides: Sequence[int]) -> Video:
    """Returns the grid of latents of this shape (B, C, F, H, W). sides: of the pixels that become a token. Raises
    RequestError, on every rank alike, for latents without frames."""
    if len(latents) != 5 or latents[2] <= sides[0]:
        raise RequestError(
            f"Sparse attention is for video, and these latents ({'×'.join(map(str, latents))}) have no frames or one.",
            f"Use sparse={OFF}.",
        )
    frames, rows, columns = (-(-size // side) for size, side in zip(latents[2:], sides, strict=True))
    return Video(frames, rows * columns)


def tile_pairs(video: Video, width: float, device: torch.device) -> torch.Tensor:
    """Returns which tiles attend to which, (T, T), computed on the device, so that the host does not wait.

    width: see `WIDTHS`.
    """
    count = video.frames * video.tokens
    starts = torch.arange(0, count, video.tile, device=device)
    lasts = (starts + video.tile - 1).clamp(max=count - 1)
    first, last = starts // video.tokens, lasts // video.tokens
    crosses = first != last  # a tile is in one frame or in two
    pieces = (
        (first, starts % video.tokens, torch.where(crosses, video.tokens - 1, lasts % video.tokens)),
        (last, torch.where(crosses, 0, starts % video.tokens), lasts % video.tokens),
    )
    found = torch.zeros(len(starts), len(starts), dtype=torch.bool, device=device)
    for frame, low, high in ([each.unsqueeze(1) for each in piece] for piece in pieces):
        for seen, least, most in pieces:
            distance = (frame - seen).abs()
            doubled = torch.zeros_like(distance)
            for power in range(1, video.frames.bit_length()):
                doubled += distance >= 1 << power
            window = 2 * video.tokens * width / 2.0**doubled
            gap = torch.maximum(least - high, low - most).clamp(min=0)
            found |= (distance <= 1) | (seen == 0) | (gap < window)
    return found
