"""The formats in which keys, queries, values and results are sent. The sender encodes, the receiver decodes.

Shapes: D head dim, E the bytes or numbers of a token's head as it is sent, n blocks of a head, b numbers of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from ...plan import EXCHANGE_BLOCK, FP8, INT8, MODEL

SCALE = torch.bfloat16
TINY = torch.finfo(torch.float32).tiny
# The number that the largest of a block becomes. A scale in bf16 may be 2^-8 too small, which must not overflow.
LARGEST = {torch.int8: 126.0, torch.float8_e4m3fn: 448.0}


class WireFormat(NamedTuple):
    """encode: turns (…, D) into (…, E). decode: turns (…, E) into (…, D), given D and a dtype."""

    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor, int, torch.dtype], torch.Tensor]


def count_blocks(size: int) -> int:
    """Returns into how many equal blocks a head is cut."""
    return next(count for count in range(1, size + 1) if size % count == 0 and size <= EXCHANGE_BLOCK * count)


def to_blocks(number: torch.dtype, values: torch.Tensor) -> torch.Tensor:
    """Encodes as bytes, which every backend can send: a byte for each number, then the blocks' scales in bf16, so
    E = D + 2n. Nothing waits for the device.

    The error of a number in int8 is at most 1/250 of its block's largest. In float8 e4m3 it is at most 1/16 of the
    number itself, or 2^-18 of the largest, whichever is more.
    """
    size = values.shape[-1]
    values_nb = values.unflatten(-1, (count_blocks(size), -1))
    scale_n = (values_nb.abs().amax(-1).float() / LARGEST[number]).clamp_(min=TINY).to(SCALE)
    scaled_nb = values_nb / scale_n.unsqueeze(-1)
    if not number.is_floating_point:
        scaled_nb.round_()
    encoded = values.new_empty((*values.shape[:-1], size + SCALE.itemsize * scale_n.shape[-1]), dtype=torch.uint8)
    encoded[..., :size].view(number).copy_(scaled_nb.flatten(-2))
    encoded[..., size:] = scale_n.view(torch.uint8)
    return encoded


def from_blocks(number: torch.dtype, encoded: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.promote_types(SCALE, dtype)  # fp16 would round small scales to few digits
    scale_n = encoded[..., size:].clone(memory_format=torch.contiguous_format).view(SCALE).to(wide)
    numbers_nb = encoded[..., :size].view(number).unflatten(-1, (scale_n.shape[-1], -1))
    if number.is_floating_point:
        numbers_nb = numbers_nb.to(wide)
    return (numbers_nb * scale_n.unsqueeze(-1)).flatten(-2).to(dtype)


def in_blocks(number: torch.dtype) -> WireFormat:
    return WireFormat(partial(to_blocks, number), partial(from_blocks, number))


# By a plan's exchange_dtype.
FORMATS = {
    MODEL: WireFormat(lambda values: values, lambda encoded, _size, _dtype: encoded),
    INT8: in_blocks(torch.int8),
    FP8: in_blocks(torch.float8_e4m3fn),
}
