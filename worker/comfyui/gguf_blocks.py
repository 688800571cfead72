"""Dequantises GGUF's block formats with torch, on the device of the blocks.

The formats are ggml's (`ggml-common.h`, `dequantize_row_*` in `ggml-quants.c` of llama.cpp). The arithmetic is in fp32
and in the order of the `gguf` package, and gives the same bits: the product of a scale and a quantised value is exact,
so it may be fused with the sum. On a GPU that one operation converts the bytes and writes the dtype asked for.

Shapes: N blocks, B bytes in a block, G groups in a block with one scale each, S weights in a group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

# How many weights are unpacked at a time: each takes a few bytes beside the result. The CPU's number fits its caches.
CHUNK, CPU_CHUNK = 1 << 23, 1 << 19
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Unpacked(NamedTuple):
    """Weights are scale × quants + offset. quants: small integers, (N, G, S). scale, offset: fp32, (N, G, 1)."""

    quants: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None = None


def half(blocks_NB: torch.Tensor, start: int) -> torch.Tensor:
    """Reads the fp16 number that starts at this byte: (N, 1) in fp32."""
    return blocks_NB[:, start : start + 2].view(torch.float16).float()


def fields(packed: torch.Tensor, width: int, run: int) -> torch.Tensor:
    """Unpacks numbers of `width` bits, (N, count): for each run of bytes first all lowest bits, then the next ones."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)[:, None]
    shifted = packed.reshape(len(packed), -1, 1, run) >> shifts
    return shifted.bitwise_and_((1 << width) - 1).flatten(1)


def join_bits(low: torch.Tensor, high: torch.Tensor, bits: int) -> torch.Tensor:
    """Joins numbers from their lower `bits` bits and their higher bits."""
    return low.add_(high, alpha=1 << bits)


def signed(values: torch.Tensor, middle: int) -> torch.Tensor:
    """Shifts unsigned numbers so that `middle` becomes zero."""
    return values.sub_(middle).view(torch.int8)  # a wrapped byte is the negative int8


def groups(values: torch.Tensor, size: int) -> torch.Tensor:
    """Splits into groups: (N, G, S)."""
    return values.view(len(values), -1, size)


def six_bits(packed_N12: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpacks the 6-bit scales and minima of eight groups, (N, 8): four have a byte each, four use the bits left
    over."""
    scales, minima, low = packed_N12.view(-1, 3, 4).unbind(1)
    return (
        torch.cat([scales & 63, (low & 15) | ((scales >> 2) & 48)], 1),
        torch.cat([minima & 63, (low >> 4) | ((minima >> 2) & 48)], 1),
    )


def q4_0(blocks: torch.Tensor) -> Unpacked:
    return of_one_group(signed(fields(blocks[:, 2:], 4, 16), 8), half(blocks, 0))


def q4_1(blocks: torch.Tensor) -> Unpacked:
    return of_one_group(fields(blocks[:, 4:], 4, 16), half(blocks, 0), half(blocks, 2))


def five_bits(high_N4: torch.Tensor, low_N16: torch.Tensor) -> torch.Tensor:
    return join_bits(fields(low_N16, 4, 16), fields(high_N4, 1, 1), 4)


def q5_0(blocks: torch.Tensor) -> Unpacked:
    return of_one_group(signed(five_bits(blocks[:, 2:6], blocks[:, 6:]), 16), half(blocks, 0))


def q5_1(blocks: torch.Tensor) -> Unpacked:
    return of_one_group(five_bits(blocks[:, 4:8], blocks[:, 8:]), half(blocks, 0), half(blocks, 2))


def q8_0(blocks: torch.Tensor) -> Unpacked:
    return of_one_group(blocks[:, 2:].view(torch.int8), half(blocks, 0))


def of_one_group(quants: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None = None) -> Unpacked:
    return Unpacked(quants[:, None], scale[:, :, None], None if offset is None else offset[:, :, None])


def q2_k(blocks: torch.Tensor) -> Unpacked:
    scales = blocks[:, :16]
    scale = half(blocks, 80) * (scales & 15).float()
    minimum = half(blocks, 82) * (scales >> 4).float()
    return Unpacked(groups(fields(blocks[:, 16:80], 2, 32), 16), scale[:, :, None], -minimum[:, :, None])


def q3_k(blocks: torch.Tensor) -> Unpacked:
    scales = join_bits(fields(blocks[:, 96:104], 4, 8), fields(blocks[:, 104:108], 2, 4), 4)
    quants = join_bits(fields(blocks[:, 32:96], 2, 32), fields(blocks[:, :32], 1, 32), 2)
    scale = half(blocks, 108) * (scales.float() - 32)
    return Unpacked(groups(signed(quants, 4), 16), scale[:, :, None])


def q4_k(blocks: torch.Tensor) -> Unpacked:
    return with_minima(blocks, fields(blocks[:, 16:], 4, 32))


def q5_k(blocks: torch.Tensor) -> Unpacked:
    return with_minima(blocks, join_bits(fields(blocks[:, 48:], 4, 32), fields(blocks[:, 16:48], 1, 32), 4))


def with_minima(blocks: torch.Tensor, quants: torch.Tensor) -> Unpacked:
    scales, minima = six_bits(blocks[:, 4:16])
    scale, minimum = half(blocks, 0) * scales.float(), half(blocks, 2) * minima.float()
    return Unpacked(groups(quants, 32), scale[:, :, None], -minimum[:, :, None])


def q6_k(blocks: torch.Tensor) -> Unpacked:
    scale = half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    quants = join_bits(fields(blocks[:, :128], 4, 64), fields(blocks[:, 128:192], 2, 32), 4)
    return Unpacked(groups(signed(quants, 32), 16), scale[:, :, None])


@functools.cache
def pairs_of_values(device: torch.device) -> torch.Tensor:
    """Returns a table: for each byte, the two values of its halves as one number, the lower half first.

    It is built once, because the host waits for the copy to the device.
    """
    values = torch.tensor(IQ4_VALUES, dtype=torch.int8)
    pairs = torch.stack([values.repeat(16), values.repeat_interleave(16)], 1)
    return pairs.view(torch.int16).flatten().to(device)


def iq4_values(packed: torch.Tensor) -> torch.Tensor:
    """(N, runs of 16 bytes, low or high half of a byte, byte)."""
    pairs = pairs_of_values(packed.device)[packed.int()]
    return pairs.view(torch.int8).view(len(packed), -1, 16, 2).transpose(2, 3)


def iq4_nl(blocks: torch.Tensor) -> Unpacked:
    return Unpacked(iq4_values(blocks[:, 2:]), half(blocks, 0)[:, :, None, None])


def iq4_xs(blocks: torch.Tensor) -> Unpacked:
    scales = join_bits(fields(blocks[:, 4:8], 4, 1), fields(blocks[:, 2:4], 2, 1), 4)
    scale = half(blocks, 0) * (scales.float() - 32)
    return Unpacked(iq4_values(blocks[:, 8:]), scale[:, :, None, None])


# By GGUF's names.
FORMATS: Mapping[str, Callable[[torch.Tensor], Unpacked]] = {
    each.__name__.upper(): each for each in (q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs)
}


def dequantise(blocks_NB: torch.Tensor, form: str, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Dequantises blocks in one of FORMATS to weights, (count,)."""
    weights = torch.empty(count, dtype=dtype, device=blocks_NB.device)
    each = max(1, count // max(1, len(blocks_NB)))
    step = (CPU_CHUNK if blocks_NB.device.type == "cpu" else CHUNK) // each
    for start in range(0, len(blocks_NB), step):
        quants, scale, offset = FORMATS[form](blocks_NB[start : start + step])
        target = weights[start * each : start * each + quants.numel()].view(quants.shape)
        if offset is None:
            torch.mul(quants, scale, out=target)
        else:
            torch.addcmul(offset, scale, quants, out=target)
    return weights
