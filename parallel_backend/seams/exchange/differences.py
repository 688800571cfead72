"""What travels under `exchange_dtype=int4`: differences to the step before, in half a byte a number.

Queries, keys, values and results change little from step to step. The sender and its receivers keep the values of the
last step. The sender encodes how far its new values are from these. Then all of them add what was sent to what they
keep. They add the same bytes, so they keep the same values. The error is that of the last difference alone, and does
not add up over the steps.
"""

from __future__ import annotations

import torch

from .formats import PAIRS, WireFormat, in_blocks

HALF_BYTES = in_blocks(PAIRS)


class Differences:
    """The last values of each tensor that this rank has received or sent, by the tensor's key.

    They belong to the forwards of one kind of a sampling's steps. The first time, a tensor travels whole.
    """

    def __init__(self) -> None:
        self.arrived: dict[object, torch.Tensor] = {}

    def encode(self, whole: WireFormat, key: object, values: torch.Tensor) -> torch.Tensor:
        """Encodes this rank's values. whole: the format for the first time."""
        before = self.arrived.get(key)
        encoded = whole.encode(values) if before is None else HALF_BYTES.encode(values - before)
        self.decode(whole, key, encoded, values.shape[-1], values.dtype)
        return encoded

    def decode(
        self, whole: WireFormat, key: object, encoded: torch.Tensor, size: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Decodes what `encode` made on this rank or another, and keeps it."""
        before = self.arrived.get(key)
        if before is None:
            now = whole.decode(encoded, size, dtype)
        else:
            now = before + HALF_BYTES.decode(encoded, size, dtype)
        self.arrived[key] = now
        return now
