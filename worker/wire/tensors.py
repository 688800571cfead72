"""Writes tensors as a safetensors blob and reads them back, without copies.

The safetensors package copies every byte twice on writing and once on reading: a third of the time that a 1 MiB latent
takes to the ranks and back. The format is its own: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import torch

from ..errors import Explained
from .json_object import parse_object

WritableBuffer = bytearray | memoryview
Buffer = bytes | WritableBuffer
Tensors = dict[str, torch.Tensor]

LENGTH = struct.Struct("<Q")
ALIGNMENT = 8  # of the tensors in the blob
MAX_HEADER = 8 << 20
MAX_DIMS = 16
MAX_ELEMENTS = 8 << 30  # sizes of 0 count as 1, because torch computes strides of an empty tensor, too
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class UnsendableError(Explained, ValueError):
    """A value that a frame cannot carry."""


def to_buffers(tensors: Tensors) -> list[Buffer | torch.Tensor]:
    """Returns the blob in pieces: its header, then each tensor's own memory; on a device, as a row of bytes.

    Raises UnsendableError for a dtype that is not in DTYPES.
    """
    header, pieces, end = {}, [], 0
    # The widest dtype first, as the format requires: then each tensor begins at a multiple of its own width.
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
        if tensor.dtype not in NAMES:
            raise UnsendableError(f"The tensor {name} has dtype {tensor.dtype}, which cannot be sent to the ranks.")
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        row = bytes_of(tensor)
        pieces.append(row.numpy().data if row.is_cpu else row)
    text = json.dumps(header).encode()
    text += b" " * (-(LENGTH.size + len(text)) % ALIGNMENT)
    return [LENGTH.pack(len(text)) + text, *pieces]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's memory as a row of bytes. Copies it if it is not contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    # A row of one element counts as contiguous with any stride. An expanded one has stride 0, and torch refuses to view
    # that as bytes.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)


def from_buffer(blob: Buffer) -> Tensors:
    """Returns the tensors of a blob as views of its memory. Raises ValueError if it is cut off or inconsistent."""
    view = memoryview(blob)
    if len(view) < LENGTH.size or LENGTH.unpack_from(view)[0] > len(view) - LENGTH.size:
        raise ValueError("the tensors' header is cut off")
    (length,) = LENGTH.unpack_from(view)
    if length > MAX_HEADER:
        raise ValueError(f"the tensors' header of {length} bytes is over the cap of {MAX_HEADER}")
    data = view[LENGTH.size + length :]
    tensors, end = {}, 0
    try:
        header = parse_object(view[LENGTH.size :][:length])
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (start, stop) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            count = element_count(shape)
            if not are_sizes([start, stop]) or start != end or stop - start != count * dtype.itemsize:
                raise ValueError(f"tensor {name} does not fit bytes {start} to {stop}")
            end = stop
            if end > len(data):
                raise ValueError(f"tensor {name} is cut off")
            flat = torch.frombuffer(data[start:stop], dtype=dtype) if count else torch.empty(0, dtype=dtype)
            tensors[name] = flat.reshape(shape)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the tensors' header is malformed: {error!r}") from error
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes belong to no tensor")
    return tensors


def element_count(shape: Any) -> int:
    """Counts the elements of a shape. Raises ValueError if it is not a shape, or over the caps."""
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not are_sizes(shape):
        raise ValueError("a tensor's shape is not a list of sizes")
    if math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise ValueError(f"a tensor's shape is over the cap of {MAX_ELEMENTS} elements")
    return math.prod(shape)


def are_sizes(numbers: list[Any]) -> bool:
    """Whether all are non-negative ints. True and 1.0 do not count."""
    return all(type(number) is int and number >= 0 for number in numbers)
