"""Model files in GGUF, and what is in them, as the `gguf` package dequantises it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch

# Which the package cannot write: where a block has its scales, in fp16, and how large one is to be beside the other, so
# that blocks of any other bytes have weights around zero.
SCALES: Mapping[str, Mapping[int, float]] = {
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
    "IQ3_S": {0: 1.0},
}
ROW = 256  # weights, in which converters write a tensor whose own rows are not of whole blocks


def write_gguf(
    weights: Mapping[str, torch.Tensor], path: Path, forms: Sequence[str], metadata: Mapping[str, str] | None = None
) -> dict[str, torch.Tensor]:
    """Writes the weights, those of matrices and convolutions in these formats, one after another, the others in fp32.
    Returns them dequantised; in formats that the package cannot write they are others, of the same spread."""
    writer, found = gguf.GGUFWriter(path, "flux"), {}  # what it says there is for people
    for key, said in (metadata or {}).items():
        writer.add_string(key, said)
    generator, packed = np.random.default_rng(0), 0
    for name, weight in weights.items():
        form = "F32"
        if weight.ndim > 1 and not weight.numel() % ROW:
            form, packed = forms[packed % len(forms)], packed + 1
        kind, values = gguf.GGMLQuantizationType[form], weight.float().numpy()
        if values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            writer.add_array(f"comfy.gguf.orig_shape.{name}", list(values.shape))
            values = values.reshape(-1, ROW)
        blocks = made_up(values, kind, generator) if form in SCALES else gguf.quantize(values, kind)
        writer.add_tensor(name, blocks, raw_dtype=kind)
        found[name] = torch.from_numpy(gguf.dequantize(blocks, kind).copy()).view(weight.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found


def made_up(like: np.ndarray, kind: gguf.GGMLQuantizationType, generator: np.random.Generator) -> np.ndarray:
    """Rows of blocks of as many weights, of about the same spread."""
    count, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (like.size // count, size), dtype=np.uint8)
    scale(blocks, kind, 1.0)
    scale(blocks, kind, like.std() / gguf.dequantize(blocks, kind).std())
    return blocks.reshape(*like.shape[:-1], -1)


def scale(blocks: np.ndarray, kind: gguf.GGMLQuantizationType, to: float) -> None:
    for place, times in SCALES[kind.name].items():
        blocks[:, place : place + 2] = np.array([to * times], np.float16).view(np.uint8)
