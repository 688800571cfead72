"""Links of real machines, scaled to what a rank on a CPU computes.

What a link costs depends on one ratio: how long a step's bytes travel to how long its FLOPs take. A CPU rank keeps the
ratio of a real card if the link gets slower as it does:

    rate = link × (rank's FLOP/s ÷ card's FLOP/s) × (bytes an element ÷ 2) × shrink

The bytes: the card computes and sends in two bytes an element, a CPU rank mostly in four. shrink: how many times fewer
tokens and channels the model has than the real one. With both fewer by s, a block's FLOPs, linear and attention
alike, are fewer by s³, and its weights' and its activations' bytes by s², so one factor sets both right.

link and card are what is reached in practice, not what data sheets promise; they are assumed, not measured here.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

CARD_ITEMSIZE = 2


@dataclass(frozen=True)
class Profile:
    """link: bytes a second that a card sends and, at once, receives. card: its FLOP/s in bf16."""

    name: str
    link: float
    card: float

    def rate(self, flops: float, itemsize: int = 4, shrink: float = 1.0) -> float:
        """Bytes a second for a rank that computes so many FLOP/s; see above."""
        return self.link * (flops / self.card) * (itemsize / CARD_ITEMSIZE) * shrink


RTX_3090, RTX_4090, H100 = 50e12, 110e12, 550e12
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("PCIe 3.0 x8", 3.2e9, RTX_3090),  # without peer-to-peer, NCCL goes through host memory: half
        Profile("PCIe 3.0 x8, peer-to-peer", 6.5e9, RTX_3090),
        Profile("PCIe 4.0 x16", 12e9, RTX_4090),
        Profile("PCIe 4.0 x16, peer-to-peer", 25e9, RTX_4090),
        Profile("NVLink", 300e9, H100),
        Profile("10 Gbit/s Ethernet", 1.2e9, RTX_4090),
        Profile("100 Gbit/s Ethernet", 11.5e9, RTX_4090),
    )
}


def measured_flops(tokens: int, width: int, repeats: int = 15) -> float:
    """FLOP/s of this process in a block's products: the median of those into and out of four times the width, fp32.

    All ranks do it at once, after a barrier of the caller's, so that each has the share of the machine that it has in
    a step.
    """
    narrow, wide = torch.randn(tokens, width), torch.randn(tokens, 4 * width)
    into, out = torch.randn(width, 4 * width), torch.randn(4 * width, width)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        torch.mm(narrow, into)
        torch.mm(wide, out)
        seconds.append(time.perf_counter() - started)
    return 2 * 2 * tokens * width * 4 * width / statistics.median(seconds)
