"""Reads GGUF files of diffusion models with the `gguf` package."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch

from ..compat import bounded
from ..errors import ModelFileError
from .gguf_blocks import FORMATS
from .gguf_layout import wrap_blocks

ORIGINAL_SHAPE = "comfy.gguf.orig_shape."  # written by converters that reshaped a tensor to rows of whole blocks
ARCHITECTURE = "general.architecture"
PLAIN = ("F16", "F32", "F64", "I8", "I16", "I32", "I64")
BF16 = "BF16"
STRING = gguf.GGUFValueType.STRING
NATIVE = "I"  # gguf's name for the machine's own byte order
MOST_READS = 1 << 17  # of numbers and texts; twice as many as the largest models have


def read_gguf(file: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Returns a file's tensors, and its text fields, such as a config.

    The tensors are views of the file's pages; `wrap_blocks` makes those in blocks. Raises ModelFileError for a broken
    file, and for a format that cannot be dequantised.
    """
    reader, name = open_gguf(file), Path(file).name
    for form in {tensor.tensor_type for tensor in reader.tensors}:
        check_known(form, name)
    try:
        tensors = {tensor.name: read_tensor(reader, tensor) for tensor in reader.tensors}
        words = {name: field.contents() for name, field in reader.fields.items() if field.types == [STRING]}
    except (ValueError, RuntimeError, TypeError) as error:
        raise broken_file_error(name, error) from error
    return tensors, words


def broken_file_error(name: str, error: Exception) -> ModelFileError:
    return ModelFileError(
        f"{name} is not a whole GGUF file ({error}); it was cut short or damaged.", "Download it again."
    )


def open_gguf(file: str | Path) -> gguf.GGUFReader:
    name = Path(file).name
    try:
        # Copy-on-write, because torch warns about read-only memory.
        reader = bounded(gguf.GGUFReader, MOST_READS)(file, "c")
    except (ValueError, KeyError, IndexError, TypeError, ArithmeticError, RecursionError, OSError) as error:
        raise broken_file_error(name, error) from error
    if reader.byte_order != NATIVE:
        raise ModelFileError(f"{name} has another byte order than this machine.", "Convert the file.")
    return reader


def check_known(kind: gguf.GGMLQuantizationType, file: str) -> None:
    """Raises ModelFileError for a format that neither this module nor the gguf package can dequantise."""
    if kind.name in (*PLAIN, BF16, *FORMATS):
        return
    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError as error:
        raise ModelFileError(
            f"{file} has weights in {kind.name}, which the gguf package cannot dequantise.",
            "Use a file in another format.",
        ) from error


def read_tensor(reader: gguf.GGUFReader, tensor: gguf.ReaderTensor) -> torch.Tensor:
    """Reads one tensor. Raises ValueError, RuntimeError or TypeError if the file's description of it is wrong."""
    form = tensor.tensor_type.name
    field = reader.get_field(ORIGINAL_SHAPE + tensor.name)
    shape = tuple(field.contents() if field else reversed(tensor.shape.tolist()))
    values = torch.from_numpy(tensor.data)
    if form in PLAIN:
        return values.view(shape)
    if form == BF16:
        return values.view(torch.bfloat16).view(shape)
    if math.prod(shape) != tensor.n_elements:
        raise ValueError(f"{tensor.name} has {tensor.n_elements} weights, which do not fit the shape {shape}")
    blocks = values.view(-1, gguf.GGML_QUANT_SIZES[tensor.tensor_type][1])
    return wrap_blocks(blocks, form, shape)


def write_gguf(path: Path, weights: Mapping[str, tuple[torch.Tensor, str, Sequence[int]]]) -> None:
    """Writes a file that `read_gguf` reads. weights: by name, a tensor, its format (empty for one that is not in
    blocks), and the shape of the weight, which the tensor of bytes in blocks does not have."""
    writer = gguf.GGUFWriter(path, "diffusion")
    for name, (tensor, form, shape) in weights.items():
        form = form or (BF16 if tensor.dtype == torch.bfloat16 else "")
        if form == BF16:
            tensor = tensor.view(torch.uint8)
        kind = gguf.GGMLQuantizationType[form] if form else None
        writer.add_array(ORIGINAL_SHAPE + name, list(shape))
        writer.add_tensor(name, tensor.numpy(), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
