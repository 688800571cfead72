"""A group norm over the rows of all ranks.

Shapes: B batch, C channels, G groups, N values of a group on this rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...groups.collectives import gather
from ...groups.mesh import Axis

# The statistics of a large picture are computed for one of this many parts of the groups at a time, to limit their fp32
# copies. Of a picture with fewer numbers they are computed at once, as each part takes several operations.
NORM_PARTS, SMALL = 8, 1 << 23


def band_group_norm(
    band_BC: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    axis: Axis,
) -> torch.Tensor:
    """`F.group_norm` of this rank's band (B, C, …), with the mean and variance of all ranks' rows."""
    # Attention leaves channels last. torch's norm restores their order, and the next convolutions depend on it.
    band_BC = band_BC.contiguous()
    batch, channels = band_BC.shape[:2]
    mean_BG, variance_BG = statistics(band_BC.reshape(batch, groups, -1), axis)
    # A batch norm with given statistics is a fused kernel that applies them. The batch counts as channels, because each
    # image has its own statistics.
    mean, variance = (value.repeat_interleave(channels // groups, 1).flatten() for value in (mean_BG, variance_BG))
    scale, shift = (None if each is None else each.float().expand(batch, -1).flatten() for each in (weight, bias))
    joined = band_BC.reshape(1, batch * channels, *band_BC.shape[2:])
    return F.batch_norm(joined, mean, variance, scale, shift, training=False, eps=eps).reshape(band_BC.shape)


def statistics(band_BGN: torch.Tensor, axis: Axis) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns mean and (biased) variance of each group over all ranks, in fp32, merged from each rank's own.

    Each rank sums squared deviations from its own mean, which avoids cancellation (Chan et al., 1979).
    """
    means, squares = [], []
    parts = NORM_PARTS if band_BGN.numel() > SMALL else 1
    for part in band_BGN.split(max(1, band_BGN.shape[1] // parts), 1):
        part = part.float()
        means.append(part.mean(-1))
        squares.append((part - means[-1].unsqueeze(-1)).square_().sum(-1))
    mean_BG, square_BG = (each[0] if len(each) == 1 else torch.cat(each, 1) for each in (means, squares))
    local = torch.stack((mean_BG, square_BG, torch.full_like(mean_BG, band_BGN.shape[2])))
    mean, square, count = gather(local.unsqueeze(0), 0, axis.degree, axis.evenly).unbind(1)
    total = count.sum(0)
    whole_mean = (mean * count).sum(0) / total
    return whole_mean, torch.addcmul(square, count, (mean - whole_mean).square()).sum(0) / total
