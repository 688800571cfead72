"""Turns tensors into bytes and back, without copies. A frame's header has their names, dtypes and shapes."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..errors import RequestRefused

WritableBuffer = bytearray | memoryview
Buffer = bytes | WritableBuffer
Tensors = dict[str, torch.Tensor]

Described = dict[str, tuple[str, list[int]]]  # tensors' dtypes and shapes, by name

MAX_DIMS = 16
MAX_ELEMENTS = 8 << 30  # sizes of 0 count as 1, because torch computes strides of an empty tensor, too
# By safetensors' names.
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class UnsendableError(RequestRefused):
    """A value that a frame cannot carry."""


def to_pieces(tensors: Tensors) -> tuple[Described, list[Buffer | torch.Tensor]]:
    """Returns the description of tensors, and each tensor's own memory in the same order; on a device, as a row of
    bytes. Raises UnsendableError for a dtype that is not in DTYPES."""
    described, pieces = {}, []
    # The widest dtype first: then each tensor begins at a multiple of its own width.
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
        if tensor.dtype not in NAMES:
            raise UnsendableError(f"The tensor {name} has dtype {tensor.dtype}, which cannot be sent to the ranks.")
        described[name] = NAMES[tensor.dtype], list(tensor.shape)
        row = bytes_of(tensor)
        pieces.append(row.numpy().data if row.is_cpu else row)
    return described, pieces


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's memory as a row of bytes. Copies it if it is not contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    # A row of one element counts as contiguous with any stride. An expanded one has stride 0, and torch refuses to view
    # that as bytes.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)


def from_buffer(described: Any, memory: memoryview) -> Tensors:
    """Returns the tensors of a description as views of this memory. Raises ValueError if they do not fit it."""
    tensors, end = {}, 0
    try:
        for name, (kind, shape) in described.items():
            dtype, count = DTYPES[kind], element_count(shape)
            start, end = end, end + count * dtype.itemsize
            if end > len(memory):
                raise ValueError(f"tensor {name} is cut off")
            flat = torch.frombuffer(memory[start:end], dtype=dtype) if count else torch.empty(0, dtype=dtype)
            tensors[name] = flat.reshape(shape)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the tensors' description is malformed: {error!r}") from error
    if end != len(memory):
        raise ValueError(f"{len(memory) - end} bytes belong to no tensor")
    return tensors


def element_count(shape: Any) -> int:
    """Counts the elements of a shape. Raises ValueError if it is not a shape, or over the caps. True and 1.0 are no
    sizes."""
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("a tensor's shape is not a list of sizes")
    if math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise ValueError(f"a tensor's shape is over the cap of {MAX_ELEMENTS} elements")
    return math.prod(shape)
