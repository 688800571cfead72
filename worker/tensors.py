"""Tensors as a safetensors blob and back, without copying them.

The safetensors package copies every byte twice on the way in and once on the way out; of a 1 MiB latent's hop from
ComfyUI to the ranks and back that is a third. The format is its own: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct

import torch

Buffer = bytes | bytearray | memoryview
Tensors = dict[str, torch.Tensor]

LENGTH = struct.Struct("<Q")
ALIGNMENT = 8  # of the tensors in the blob
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def to_buffers(tensors: Tensors) -> list[Buffer]:
    """The blob in pieces: its header, then each tensor's own memory. Tensors on a device are copied to the CPU."""
    header, pieces, end = {}, [], 0
    # The widest first, as the format wants it: then each begins at a multiple of its own width.
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        pieces.append(memoryview(flat.view(torch.uint8).numpy()))
    text = json.dumps(header).encode()
    text += b" " * (-(LENGTH.size + len(text)) % ALIGNMENT)
    return [LENGTH.pack(len(text)) + text, *pieces]


def from_buffer(blob: Buffer) -> Tensors:
    """The tensors of a blob, as views of its memory. Raises ValueError if it is cut off or contradicts itself."""
    view = memoryview(blob)
    if len(view) < LENGTH.size or LENGTH.unpack_from(view)[0] > len(view) - LENGTH.size:
        raise ValueError("the tensors' header is cut off")
    (length,) = LENGTH.unpack_from(view)
    data = view[LENGTH.size + length :]
    tensors, end = {}, 0
    try:
        header = json.loads(bytes(view[LENGTH.size :][:length]))
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (start, stop) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            count = math.prod(shape)
            if any(size < 0 for size in shape) or start != end or stop - start != count * dtype.itemsize:
                raise ValueError(f"tensor {name} of shape {shape} does not fit bytes {start} to {stop}")
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
