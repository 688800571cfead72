"""What travels under `exchange_dtype=int4`: differences to the step before, in half a byte a number.

Queries, keys, values and results change little from step to step. The sender and its receivers keep the values of the
last step. The sender encodes how far its new values are from these. Then all of them add what was sent to what they
keep. They add the same bytes, so they keep the same values. The error is that of the last difference alone, and does
not add up over the steps. A first step has nothing to differ from, so it is exact.

Shapes: D head dim, E the bytes of a token's head as it is sent, n blocks of a head, b numbers of a block, W the bytes
of a head's numbers without their scales.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...plan import EXCHANGE_BLOCK

SCALE = torch.bfloat16
TINY = torch.finfo(torch.float32).tiny
LARGEST = 7.0  # what the largest of a block becomes
OFFSET = 8


class Differences:
    """The last values of each tensor that this rank has received or sent, by the tensor's key.

    They belong to the forwards of one kind of a sampling's steps. The first time, a tensor travels as it is.
    """

    def __init__(self) -> None:
        self.arrived: dict[object, torch.Tensor] = {}

    def encode(self, key: object, values: torch.Tensor) -> torch.Tensor:
        """Encodes this rank's values."""
        before = self.arrived.get(key)
        encoded = values if before is None else to_half_bytes(values - before)
        self.decode(key, encoded)
        return encoded

    def decode(self, key: object, encoded: torch.Tensor) -> torch.Tensor:
        """Decodes what `encode` made on this rank or another, and keeps it."""
        before = self.arrived.get(key)
        if before is None:
            now = encoded.clone()
        else:
            now = before + from_half_bytes(encoded, before.shape[-1], before.dtype)
        self.arrived[key] = now
        return now


def to_half_bytes(values: torch.Tensor) -> torch.Tensor:
    """Encodes (…, D) as bytes (…, E), which every backend can send: numbers of four bits, then the blocks' scales in
    bf16, so E = W + 2n. A byte has one number of a head's first half and one of its second. Nothing waits for the
    device.

    The error of a number is at most 1/13 of its block's largest.
    """
    size = values.shape[-1]
    values_nb = values.unflatten(-1, (count_blocks(size), -1))
    scale_n = (values_nb.abs().amax(-1).float() / LARGEST).clamp_(min=TINY).to(SCALE)
    scaled = (values_nb / scale_n.unsqueeze(-1)).flatten(-2)
    positive = F.pad(scaled.round_().add_(OFFSET), (0, size % 2)).to(torch.uint8)
    first, second = positive.chunk(2, -1)
    return torch.cat((first | (second << 4), scale_n.view(torch.uint8)), -1)


def from_half_bytes(encoded: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Decodes (…, E), given D and a dtype."""
    width, wide = -(-size // 2), torch.promote_types(SCALE, dtype)  # fp16 would round small scales to few digits
    packed, scale = encoded[..., :width], encoded[..., width:]
    scale_n = scale.clone(memory_format=torch.contiguous_format).view(SCALE).to(wide)
    numbers = torch.cat((packed & 15, packed >> 4), -1)[..., :size].view(torch.int8) - OFFSET
    return (numbers.unflatten(-1, (scale_n.shape[-1], -1)) * scale_n.unsqueeze(-1)).flatten(-2).to(dtype)


def count_blocks(size: int) -> int:
    """Returns into how many equal blocks a head is cut."""
    return next(count for count in range(1, size + 1) if size % count == 0 and size <= EXCHANGE_BLOCK * count)
