"""Ranks that compute slower than they could: one that is as a slower card, or all, so that cores are left to carry what
they send, as cards leave the host's. Their links stay what they are."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
PRODUCTS = (aten.linear, aten.matmul, aten.mm, aten.addmm, aten.bmm, aten.baddbmm)
CONVOLUTIONS = (aten.conv2d, aten.convolution)
SLEEP = 0.001  # seconds: the shortest sleep
SLOWED = (*PRODUCTS, *CONVOLUTIONS, aten.scaled_dot_product_attention, aten._scaled_dot_product_flash_attention_for_cpu)


def spare_half(ranks: int) -> float:
    """How many times slower so many ranks are to compute that half of this machine's cores are left to their links."""
    return max(1.0, 2 * ranks / (os.cpu_count() or 1))


def busy_share(seconds: float = 1.0) -> float:
    """The share of the machine's CPU time that others use now."""

    def ticks() -> tuple[int, int]:
        values = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(values), values[3] + values[4]

    total, idle = ticks()
    time.sleep(seconds)
    later, idle_later = ticks()
    return 1 - (idle_later - idle) / max(1, later - total)


def throttled(factor: float) -> AbstractContextManager:
    """While entered, this rank is so many times slower."""
    return Throttle(factor) if factor > 1 else nullcontext()


class Throttle(TorchDispatchMode):
    """While entered, products, convolutions and attention take `factor` times as long as this thread computes on them,
    whoever else has the core meanwhile: what is left of that, the thread sleeps. It sleeps for several of them at once,
    as a sleep takes longer than was asked for; what it took too long is taken off the next."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.owed = 0.0  # seconds that are left to sleep

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func._overloadpacket not in SLOWED:
            return func(*args, **(kwargs or {}))
        started, computed = time.perf_counter(), time.thread_time()
        result = func(*args, **(kwargs or {}))
        due = started + self.factor * (time.thread_time() - computed)
        now = time.perf_counter()
        self.owed += max(0.0, due - now)
        if self.owed > SLEEP:
            time.sleep(self.owed)
            self.owed -= time.perf_counter() - now
        return result
