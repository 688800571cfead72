"""Links of real machines, scaled to what a rank on a CPU computes.

What a link costs depends on one ratio: how long a step's bytes travel to how long its FLOPs take. A CPU rank keeps the
ratio of a real card if the link gets slower as it does:

    rate = link × (rank's FLOP/s ÷ card's FLOP/s) × (bytes an element ÷ 2) × shrink

The bytes: the card computes and sends in two bytes an element, a CPU rank mostly in four. shrink: how many times fewer
tokens and channels the model has than the real one. With both fewer by s, a block's FLOPs, linear and attention
alike, are fewer by s³, and its weights' and its activations' bytes by s², so one factor sets both right.

Both speeds of computing are those of a whole step, attention and what is no product included: a rank's is measured in
the run. link, host and card are what is reached in practice, not what data sheets promise; they are assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop

CARD_ITEMSIZE = 2
CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True)
class Profile:
    """link: bytes a second that a card sends and, at once, receives; host: that come to it from pinned host memory.
    card: its FLOP/s in bf16."""

    name: str
    link: float
    host: float
    card: float

    def rate(self, flops: float, itemsize: int = 4, shrink: float = 1.0) -> float:
        """Bytes a second between ranks that compute so many FLOP/s each; see above."""
        return self.link * flops / self.card * (itemsize / CARD_ITEMSIZE) * shrink


RTX_3090, RTX_4090, H100 = 50e12, 110e12, 550e12
PROFILES = {
    profile.name: profile
    for profile in (  # without peer-to-peer, NCCL goes through host memory: half
        Profile("PCIe 3.0 x8", 3.2e9, 6.5e9, RTX_3090),
        Profile("PCIe 3.0 x8, peer-to-peer", 6.5e9, 6.5e9, RTX_3090),
        Profile("PCIe 4.0 x16", 12e9, 25e9, RTX_4090),
        Profile("PCIe 4.0 x16, peer-to-peer", 25e9, 25e9, RTX_4090),
        Profile("NVLink", 300e9, 50e9, H100),
        Profile("10 Gbit/s Ethernet", 1.2e9, 25e9, RTX_4090),
        Profile("100 Gbit/s Ethernet", 11.5e9, 25e9, RTX_4090),
    )
}


def counted_flops(run: Callable[[], Any]) -> int:
    """The floating-point operations of products and attention in what is run once, on the CPU."""
    attention = {CPU_ATTENTION: lambda query, key, value, *_, **__: sdpa_flop(query, key, value)}
    with FlopCounterMode(display=False, custom_mapping=attention) as counter:
        run()
    return counter.get_total_flops()
