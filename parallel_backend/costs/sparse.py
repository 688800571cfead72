"""Counts what sparse attention leaves of a forward's attention, see `video.py`."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from ..video import WIDTHS, Video, tile_pairs
from .forward import ForwardCost


def leave_out_pairs(forward: ForwardCost, sparse: str) -> ForwardCost:
    """Returns the cost of a sparse step of a video: its self-attention computes the pairs of tokens that the pattern
    keeps. sparse: of the plan. The forward's frames are known."""
    scores = forward.blocks.scores
    video = Video(forward.frames, forward.image_tokens // forward.frames)
    others = round(forward.image_tokens * forward.text / (1 - forward.text))
    own = forward.blocks.own_scores / scores
    kept = 1 - own + own * count_kept_pairs(video, others, sparse)
    blocks = forward.blocks._replace(attention=forward.blocks.attention * kept, scores=scores * kept)
    return replace(forward, blocks=blocks)


@functools.cache
def count_kept_pairs(video: Video, others: int, sparse: str) -> float:
    """Returns the kept share of the pairs of tokens. others: how many tokens there are beside the video's; they attend
    to all and are attended to by all."""
    image = video.frames * video.tokens
    pairs_TT = tile_pairs(video, WIDTHS[sparse], torch.device("cpu")).double()
    sizes_T = torch.full((len(pairs_TT),), float(video.tile), dtype=torch.float64)
    sizes_T[-1] = image - video.tile * (len(pairs_TT) - 1)
    total = image + others
    return 1 - (image**2 - float(sizes_T @ pairs_TT @ sizes_T)) / total**2
