"""Splits a quantised weight of ComfyUI's between two of its rows, without dequantising it.

Rows of a linear layer are its outputs. Each kernel multiplies a row with that row's own scales, so both parts give what
the whole weight gives.
"""

from __future__ import annotations

from typing import Any

import torch
from comfy.quant_ops import QuantizedTensor

KERNEL_ROWS = 16  # kernels take multiples of so many rows
TILE_ROWS = 128  # scales of blocks are stored in tiles of so many rows, and 4-bit kernels take multiples of them
# By the layout's class, the number of rows at whose multiples a weight can be split.
STEPS = {
    "TensorCoreFP8Layout": KERNEL_ROWS,
    "TensorCoreFP8E4M3Layout": KERNEL_ROWS,
    "TensorCoreFP8E5M2Layout": KERNEL_ROWS,
    "TensorWiseINT8Layout": KERNEL_ROWS,
    "TensorCoreConvRotW4A4Layout": TILE_ROWS,
    "TensorCoreMXFP8Layout": TILE_ROWS,
    "TensorCoreNVFP4Layout": TILE_ROWS,
    "GGUFLayout": 1,
}


def split_rows(weight: Any, first: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns views of the first rows of a QuantizedTensor and of the others, in its layout. Returns None if the layout
    is unknown, or if it cannot be split there."""
    rows, step = len(weight), STEPS.get(weight.layout_cls.__name__)
    if not step or first % step or rows % min(step, KERNEL_ROWS) or getattr(weight.params, "transposed", False):
        return None
    names, context = weight.__tensor_flatten__()
    parts = {name: split_tensor(getattr(weight, name), rows, first, step) for name in names}
    if None in parts.values():
        return None

    def make(index: int, count: int) -> torch.Tensor:
        shape = (count, *weight.shape[1:])
        fields = {**context["non_tensor_fields"], "orig_shape": shape}
        inner: Any = {name: part[index] for name, part in parts.items() if part}
        return QuantizedTensor.__tensor_unflatten__(inner, {**context, "non_tensor_fields": fields}, shape, None)

    return make(0, first), make(1, rows - first)


def split_tensor(tensor: torch.Tensor, rows: int, first: int, step: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Splits a tensor of a weight with so many rows. It may have several entries a row, and less than `step` entries
    for padding behind the last row. A scale of the whole weight belongs to both parts."""
    if tensor.numel() <= 1:
        return tensor, tensor
    entries = len(tensor) // rows
    if not entries or len(tensor) - entries * rows >= step:
        return None
    return tensor[: entries * first], tensor[entries * first :]
