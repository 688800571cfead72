"""GGUF's block formats, dequantised by torch on whatever device the blocks are.

The formats are those of ggml (`ggml-common.h`, `dequantize_row_*` in `ggml-quants.c` of llama.cpp). The arithmetic is
in fp32 and in the order of the `gguf` package, whose bits come out. N is the number of blocks, B the bytes of one; what
is packed in a block's bytes comes out as N times the weights of a block, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

# Weights unpacked at a time: beside the result, a layer takes a few times this in fp32. A CPU's fit its caches.
CHUNK, CPU_CHUNK = 1 << 23, 1 << 19
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def half(blocks_NB: torch.Tensor, start: int) -> torch.Tensor:
    """The fp16 number at that byte, (N, 1) in fp32."""
    return blocks_NB[:, start : start + 2].view(torch.float16).float()


def fields(packed: torch.Tensor, width: int, run: int) -> torch.Tensor:
    """Numbers of so many bits, (N, all of them): of each run of bytes first the lowest bits, then those above."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)[:, None]
    return ((packed.reshape(len(packed), -1, 1, run) >> shifts) & ((1 << width) - 1)).flatten(1)


def groups(values: torch.Tensor, size: int) -> torch.Tensor:
    """(N, groups, size), in fp32."""
    return values.view(len(values), -1, size).float()


def six_bits(packed_N12: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales and the minima of eight groups, (N, 8): four in the low bits of a byte each, four in what is left."""
    scales, minima, low = packed_N12.view(-1, 3, 4).unbind(1)
    return (
        torch.cat([scales & 63, (low & 15) | ((scales >> 2) & 48)], 1),
        torch.cat([minima & 63, (low >> 4) | ((minima >> 2) & 48)], 1),
    )


def q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return half(blocks, 0) * (fields(blocks[:, 2:], 4, 16).float() - 8)


def q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return half(blocks, 0) * fields(blocks[:, 4:], 4, 16).float() + half(blocks, 2)


def five_bits(high_N4: torch.Tensor, low_N16: torch.Tensor) -> torch.Tensor:
    return (fields(low_N16, 4, 16) | (fields(high_N4, 1, 1) << 4)).float()


def q5_0(blocks: torch.Tensor) -> torch.Tensor:
    return half(blocks, 0) * (five_bits(blocks[:, 2:6], blocks[:, 6:]) - 16)


def q5_1(blocks: torch.Tensor) -> torch.Tensor:
    return half(blocks, 0) * five_bits(blocks[:, 4:8], blocks[:, 8:]) + half(blocks, 2)


def q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float() * half(blocks, 0)


def q2_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, quants = blocks[:, :16], groups(fields(blocks[:, 16:80], 2, 32), 16)
    scale = half(blocks, 80) * (scales & 15).float()
    minimum = half(blocks, 82) * (scales >> 4).float()
    return scale[:, :, None] * quants - minimum[:, :, None]


def q3_k(blocks: torch.Tensor) -> torch.Tensor:
    scales = fields(blocks[:, 96:104], 4, 8) | (fields(blocks[:, 104:108], 2, 4) << 4)
    quants = fields(blocks[:, 32:96], 2, 32) | (fields(blocks[:, :32], 1, 32) << 2)
    scale = half(blocks, 108) * (scales.float() - 32)
    return scale[:, :, None] * (groups(quants, 16) - 4)


def q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = six_bits(blocks[:, 4:16])
    scale, minimum = half(blocks, 0) * scales.float(), half(blocks, 2) * minima.float()
    return scale[:, :, None] * groups(fields(blocks[:, 16:], 4, 32), 32) - minimum[:, :, None]


def q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = six_bits(blocks[:, 4:16])
    scale, minimum = half(blocks, 0) * scales.float(), half(blocks, 2) * minima.float()
    quants = fields(blocks[:, 48:], 4, 32) | (fields(blocks[:, 16:48], 1, 32) << 4)
    return scale[:, :, None] * groups(quants, 32) - minimum[:, :, None]


def q6_k(blocks: torch.Tensor) -> torch.Tensor:
    scale = half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    quants = fields(blocks[:, :128], 4, 64) | (fields(blocks[:, 128:192], 2, 32) << 4)
    return scale[:, :, None] * (groups(quants, 16) - 32)


def iq4_values(packed: torch.Tensor) -> torch.Tensor:
    values = torch.tensor(IQ4_VALUES, dtype=torch.float32, device=packed.device)
    return values[fields(packed, 4, 16).int()]


def iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return half(blocks, 0) * iq4_values(blocks[:, 2:])


def iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    scales = fields(blocks[:, 4:8], 4, 1) | (fields(blocks[:, 2:4], 2, 1) << 4)
    scale = half(blocks, 0) * (scales.float() - 32)
    return scale[:, :, None] * groups(iq4_values(blocks[:, 8:]), 32)


# By their names in GGUF.
FORMATS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
}


def dequantised(blocks_NB: torch.Tensor, form: str, count: int, dtype: torch.dtype) -> torch.Tensor:
    """The weights, (count,), of blocks in one of FORMATS."""
    weights = torch.empty(count, dtype=dtype, device=blocks_NB.device)
    each = max(1, count // max(1, len(blocks_NB)))
    step = (CPU_CHUNK if blocks_NB.device.type == "cpu" else CHUNK) // each
    for start in range(0, len(blocks_NB), step):
        found = FORMATS[form](blocks_NB[start : start + step])
        weights[start * each : start * each + found.numel()] = found.flatten()
    return weights
