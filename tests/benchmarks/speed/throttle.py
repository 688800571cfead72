"""A rank that computes slower than the others, as a slower card would: its link stays what it is."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
PRODUCTS = (aten.linear, aten.matmul, aten.mm, aten.addmm, aten.bmm, aten.baddbmm)
SLOWED = (*PRODUCTS, aten.scaled_dot_product_attention, aten._scaled_dot_product_flash_attention_for_cpu)


class Throttle(TorchDispatchMode):
    """While entered, products and attention take `factor` times as long: what is left of it, the thread sleeps."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func._overloadpacket not in SLOWED:
            return func(*args, **(kwargs or {}))
        started = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        time.sleep((self.factor - 1) * (time.perf_counter() - started))
        return result
