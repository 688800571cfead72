"""The formats in which keys, queries, values and results are sent. The sender encodes, the receiver decodes.

Shapes: D head dim, E the bytes or numbers of a token's head as it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max
SCALE_BYTES = 4
TINY = torch.finfo(torch.float32).tiny


class WireFormat(NamedTuple):
    """encode: turns (…, D) into (…, E). decode: turns (…, E) into (…, D) of the given dtype."""

    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor, torch.dtype], torch.Tensor]


def to_float8(values: torch.Tensor) -> torch.Tensor:
    """Encodes as bytes, which every backend can send: the head in float8 e4m3, then its scale in fp32, so E = D + 4.

    The error of a number is at most 1/16 of it, or 2^-18 of the head's largest, whichever is more.
    """
    scale = (values.abs().amax(-1, keepdim=True).float() / LARGEST).clamp_(min=TINY)
    size = values.shape[-1]
    encoded = values.new_empty((*values.shape[:-1], size + SCALE_BYTES), dtype=torch.uint8)
    encoded[..., :size].view(FLOAT8).copy_(values / scale)
    encoded[..., size:] = scale.view(torch.uint8)
    return encoded


def from_float8(encoded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    size = encoded.shape[-1] - SCALE_BYTES
    scale = encoded[..., size:].contiguous().view(torch.float32)
    return (encoded[..., :size].view(FLOAT8).float() * scale).to(dtype)


# By a plan's exchange_dtype.
FORMATS = {
    "model": WireFormat(lambda values: values, lambda encoded, _dtype: encoded),
    "fp8": WireFormat(to_float8, from_float8),
}
