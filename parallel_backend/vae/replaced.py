"""Replaces methods of diffusers' VAEs that look at the size of their input, or sum over all rows.

Shapes: B batch, H heads, D head dim, N this rank's pixels; C channels, T frames.
"""

from __future__ import annotations

from typing import Any

import torch

from ..groups.collectives import gather
from ..seams.bands.rows import RowBands

LARGEST = 1 << 30  # numbers of a convolution's input; diffusers' own limit


def attend_linearly(
    layer: Any, bands: RowBands, query_BHDN: torch.Tensor, key_BHDN: torch.Tensor, value_BHDN: torch.Tensor
) -> torch.Tensor:
    """Linear attention of `SanaMultiscaleLinearAttention` to all ranks' pixels: their sums over pixels are added up.

    The class has a quadratic form for few pixels. It gives the same but for rounding, and ranks of different heights
    might choose differently. So this replaces both.
    """
    key, value = key_BHDN.float(), value_BHDN.float()
    sums = torch.cat((value @ key.mT, key.sum(-1).unsqueeze(-2)), -2)
    if bands.rows:
        sums = gather(sums.unsqueeze(0), 0, bands.axis.degree, bands.axis.evenly).sum(0)
    attended = sums @ query_BHDN.float()
    return (attended[..., :-1, :] / (attended[..., -1:, :] + layer.eps)).to(value_BHDN.dtype)


def convolve_in_parts(layer: torch.nn.Conv3d, bands: RowBands, band_BCTHW: torch.Tensor) -> torch.Tensor:
    """The convolution of `CogVideoXSafeConv3d`, which splits long videos by their size. All ranks split alike here, by
    the largest band, because each part exchanges border rows."""
    largest = band_BCTHW.numel() * max(bands.sizes) // bands.local_rows if bands.rows else band_BCTHW.numel()
    sees, step = layer.kernel_size[0], layer.stride[0]
    frames = range((band_BCTHW.shape[2] - sees) // step + 1)  # of the result
    most = -(-len(frames) // (largest // LARGEST + 1))
    parts = []
    for start in frames[::most]:
        count = len(frames[start : start + most])
        part = band_BCTHW.narrow(2, start * step, (count - 1) * step + sees)
        parts.append(torch.nn.Conv3d.forward(layer, part))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
