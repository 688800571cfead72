"""Makes all ranks read the same values from tensors, where nodes' code decides by them what the model runs next.

All ranks compute these tensors from the same numbers. Devices of different kinds may still round differently, and ranks
that decide differently would wait for each other forever.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

import torch

from ..compat import without_function_modes
from ..groups.collectives import gather
from ..groups.mesh import Axis
from ..hooks import Hooks
from .forward import ForwardSlot

READERS = ("item", "__bool__", "__float__", "__int__", "__index__")
Value = bool | int | float


class AgreedValues:
    """While entered, a value that this thread reads from a tensor between the blocks is the axis' first rank's. A value
    that a block reads stays this rank's: it has other tokens."""

    def __init__(self, axis: Axis, slot: ForwardSlot) -> None:
        self.axis, self.slot = axis, slot
        self.hooks = Hooks()
        self.thread = threading.get_ident()
        self.is_agreeing = False

    def __enter__(self) -> None:
        if self.axis.degree > 1:
            for name in READERS:
                self.hooks.replace(torch.Tensor, name, self.reader(getattr(torch.Tensor, name)))

    def __exit__(self, *_: object) -> None:
        self.hooks.remove()

    def reader(self, own: Callable[[torch.Tensor], Value]) -> Callable[[torch.Tensor], Value]:
        def read(tensor: torch.Tensor) -> Value:
            value = own(tensor)
            if self.is_agreeing or not self.slot.has_all_tokens or threading.get_ident() != self.thread:
                return value
            self.is_agreeing = True
            try:
                return self.agree(value, tensor.device)
            finally:
                self.is_agreeing = False

        return read

    def agree(self, value: Value, device: torch.device) -> Value:
        """Returns the first rank's value. It travels as bytes, because not every device has numbers of 64 bits."""
        form = "d" if isinstance(value, float) else "q"
        with without_function_modes():
            own = torch.tensor(list(struct.pack(form, value)), dtype=torch.uint8, device=device)
            first = gather(own[None], 0, self.axis.degree, self.axis)[0]
        return type(value)(struct.unpack(form, bytes(first.tolist()))[0])
