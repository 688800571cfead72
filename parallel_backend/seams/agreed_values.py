"""Makes all ranks read the same values from tensors, where nodes' code decides by them what the model runs next.

All ranks compute these tensors from the same numbers. Devices of different kinds may still round differently, and ranks
that decide differently would wait for each other forever.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..compat import without_function_modes
from ..groups.collectives import gather
from ..groups.mesh import Axis
from ..hooks import Hooks
from .forward import ForwardSlot

READERS = ("item", "__bool__", "__float__", "__int__", "__index__")
Value = bool | int | float


@contextmanager
def agreed_values(axis: Axis, slot: ForwardSlot) -> Iterator[None]:
    """While entered, a value that this thread reads from a tensor between the blocks is the axis' first rank's. A value
    that a block reads stays this rank's: it has other tokens."""
    thread, is_agreeing = threading.get_ident(), False

    def agreeing(own: Callable[[torch.Tensor], Value]) -> Callable[[torch.Tensor], Value]:
        def read(tensor: torch.Tensor) -> Value:
            nonlocal is_agreeing
            value = own(tensor)
            if is_agreeing or not slot.has_all_tokens or threading.get_ident() != thread:
                return value
            is_agreeing = True
            try:
                return first_of(value, axis, tensor.device)
            finally:
                is_agreeing = False

        return read

    with Hooks() as hooks:
        for name in READERS if axis.degree > 1 else ():
            hooks.replace(torch.Tensor, name, agreeing(getattr(torch.Tensor, name)))
        yield


def first_of(value: Value, axis: Axis, device: torch.device) -> Value:
    """Returns the first rank's value. It travels as bytes, because not every device has numbers of 64 bits."""
    form = "d" if isinstance(value, float) else "q"
    with without_function_modes():
        own = torch.tensor(list(struct.pack(form, value)), dtype=torch.uint8, device=device)
        first = gather(own[None], 0, axis.degree, axis.evenly)[0]
    return type(value)(struct.unpack(form, bytes(first.tolist()))[0])
