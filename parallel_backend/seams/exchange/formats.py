"""The formats in which keys, queries, values and results are sent. The sender encodes, the receiver decodes.

Shapes: D head dim, E the bytes or numbers of a token's head as it is sent, n blocks of a head, b numbers of a block, W
the bytes of a head's numbers without their scales.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ...plan import EXCHANGE_BLOCK, FP8, INT4, INT8, MODEL

SCALE = torch.bfloat16
TINY = torch.finfo(torch.float32).tiny


class WireFormat(NamedTuple):
    """encode: turns (…, D) into (…, E). decode: turns (…, E) into (…, D), given D and a dtype."""

    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor, int, torch.dtype], torch.Tensor]


class Number(NamedTuple):
    """How scaled numbers become bytes.

    largest: what the largest of a block becomes. A scale in bf16 may be 2^-8 too small, which must not overflow.
    width: W, given D. pack: writes (…, D), which it may change, into (…, W). unpack: turns (…, W) into (…, D), given D.
    """

    largest: float
    width: Callable[[int], int]
    pack: Callable[[torch.Tensor, torch.Tensor], object]
    unpack: Callable[[torch.Tensor, int], torch.Tensor]


def pack_pairs(scaled: torch.Tensor, packed: torch.Tensor) -> None:
    """Packs numbers of four bits. A byte has one of a head's first half and one of its second."""
    positive = F.pad(scaled.round_().add_(OFFSET), (0, scaled.shape[-1] % 2)).to(torch.uint8)
    first, second = positive.chunk(2, -1)
    packed.copy_(first | (second << 4))


def unpack_pairs(packed: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat((packed & 15, packed >> 4), -1)[..., :size].view(torch.int8) - OFFSET


OFFSET = 8
BYTES = Number(
    126.0,
    lambda size: size,
    lambda scaled, packed: packed.view(torch.int8).copy_(scaled.round_()),
    lambda packed, _size: packed.view(torch.int8),
)
FLOATS = Number(
    448.0,
    lambda size: size,
    lambda scaled, packed: packed.view(torch.float8_e4m3fn).copy_(scaled),
    lambda packed, _size: packed.view(torch.float8_e4m3fn).to(SCALE),
)
PAIRS = Number(7.0, lambda size: -(-size // 2), pack_pairs, unpack_pairs)


def count_blocks(size: int) -> int:
    """Returns into how many equal blocks a head is cut."""
    return next(count for count in range(1, size + 1) if size % count == 0 and size <= EXCHANGE_BLOCK * count)


def to_blocks(number: Number, values: torch.Tensor) -> torch.Tensor:
    """Encodes as bytes, which every backend can send: the numbers, then the blocks' scales in bf16, so E = W + 2n.
    Nothing waits for the device.

    The error of a number in int8 is at most 1/250 of its block's largest, and in int4 1/13. In float8 e4m3 it is at
    most 1/16 of the number itself, or 2^-18 of the largest, whichever is more.
    """
    size = values.shape[-1]
    width = number.width(size)
    values_nb = values.unflatten(-1, (count_blocks(size), -1))
    scale_n = (values_nb.abs().amax(-1).float() / number.largest).clamp_(min=TINY).to(SCALE)
    encoded = values.new_empty((*values.shape[:-1], width + SCALE.itemsize * scale_n.shape[-1]), dtype=torch.uint8)
    number.pack((values_nb / scale_n.unsqueeze(-1)).flatten(-2), encoded[..., :width])
    encoded[..., width:] = scale_n.view(torch.uint8)
    return encoded


def from_blocks(number: Number, encoded: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    width, wide = number.width(size), torch.promote_types(SCALE, dtype)  # fp16 would round small scales to few digits
    scale_n = encoded[..., width:].clone(memory_format=torch.contiguous_format).view(SCALE).to(wide)
    numbers_nb = number.unpack(encoded[..., :width], size).unflatten(-1, (scale_n.shape[-1], -1))
    return (numbers_nb * scale_n.unsqueeze(-1)).flatten(-2).to(dtype)


def in_blocks(number: Number) -> WireFormat:
    return WireFormat(partial(to_blocks, number), partial(from_blocks, number))


# By a plan's exchange_dtype. Under int4 a tensor travels so the first time, and then as a difference.
FORMATS = {
    MODEL: WireFormat(lambda values: values, lambda encoded, _size, _dtype: encoded),
    INT8: in_blocks(BYTES),
    INT4: in_blocks(BYTES),
    FP8: in_blocks(FLOATS),
}
