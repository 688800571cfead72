"""Radial attention by definition, token by token: what the engine's tiles, blocks and ranks are compared with.

Shares nothing with the engine. `WIDTH` and `TILES` are the numbers of the plan's choices, as the pages state them.
"""

from __future__ import annotations

from functools import cache

import torch

# How far a token sees to either side in frames two or three away, as a part of a frame.
WIDTH = {"radial": 1 / 2, "radial_narrow": 1 / 8}


def sees(frames_apart: int, places_apart: int, of_first: bool, tokens: int, width: float) -> bool:
    """Whether a token sees another, that many frames and places within a frame away."""
    if of_first or frames_apart <= 1:
        return True
    window, reach = width * tokens, 4
    while frames_apart >= reach:
        window, reach = window / 2, reach * 2
    return places_apart < window


def tile_length(tokens: int) -> int:
    """The largest power of two up to 128 of which a frame has at least eight, or else 1."""
    return max(size for size in (1, 2, 4, 8, 16, 32, 64, 128) if size == 1 or 8 * size <= tokens)


@cache
def token_pattern(frames: int, tokens: int, sparse: str) -> torch.Tensor:
    """Which token of a video sees which, without tiles."""
    apart = torch.arange(tokens)
    apart = (apart[:, None] - apart).abs()
    by_distance = [
        torch.tensor([sees(distance, place, False, tokens, WIDTH[sparse]) for place in range(tokens)])[apart]
        for distance in range(frames)
    ]
    every = torch.ones_like(by_distance[0])
    rows = [
        torch.cat([every if not seen else by_distance[abs(frame - seen)] for seen in range(frames)], 1)
        for frame in range(frames)
    ]
    return torch.cat(rows)


@cache
def pattern(frames: int, tokens: int, sparse: str) -> torch.Tensor:
    """Which token sees which, if tiles see whole tiles."""
    size, exact = tile_length(tokens), token_pattern(frames, tokens, sparse)
    tile = torch.arange(frames * tokens) // size
    pairs = torch.zeros(int(tile[-1]) + 1, int(tile[-1]) + 1, dtype=torch.bool)
    rows, columns = exact.nonzero(as_tuple=True)
    pairs[tile[rows], tile[columns]] = True
    return pairs[tile][:, tile]


def with_text(image: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """The pattern of joined streams: so many tokens before the picture's and after them see all and are seen by all."""
    total = before + len(image) + after
    every = torch.ones(total, total, dtype=torch.bool)
    every[before : before + len(image), before : before + len(image)] = image
    return every
