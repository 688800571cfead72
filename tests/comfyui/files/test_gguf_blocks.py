"""GGUF's blocks dequantise by torch are the bits that the `gguf` package makes of them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from worker.comfyui import gguf_blocks
from worker.comfyui.gguf_blocks import FORMATS, dequantise

BLOCKS = 1000
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMATS)
def test_any_bytes_give_the_packages_weights(form: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales that are infinite or no numbers included, which must not become numbers."""
    for chunk in ("CHUNK", "CPU_CHUNK"):
        monkeypatch.setattr(gguf_blocks, chunk, 1 << 14)  # in several steps, the last of them a shorter one
    kind = gguf.GGMLQuantizationType[form]
    count, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(1).integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        right = gguf.dequantize(blocks, kind).ravel()
    assert np.isfinite(right).mean() > 0.8
    weights = dequantise(torch.from_numpy(blocks).to(device), form, BLOCKS * count, torch.float32)
    np.testing.assert_array_equal(weights.cpu().numpy(), right)
    rounded = dequantise(torch.from_numpy(blocks).to(device), form, BLOCKS * count, torch.bfloat16)
    np.testing.assert_array_equal(rounded.float().cpu().numpy(), torch.from_numpy(right).bfloat16().float().numpy())
