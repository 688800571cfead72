"""What a rank takes of memory and reads of the file is what is told of it; `python -m tests.benchmarks.memory` shows it
for larger models. And what this is measured with counts what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parallel_backend.plan import HOST, SHARED, WHOLE
from tests.benchmarks.memory import (
    FLUX_TEXT,
    Shape,
    cases_of,
    measure,
    write_diffusers,
    write_stock,
)
from tests.support.ranks.pool import RankPool

RANKS = 2
# 70 MB in bf16, the largest block 19.
BLOCKS = {"num_attention_heads": 4, "num_layers": 2, "num_single_layers": 4}
SHAPE = Shape("flux-dev", BLOCKS, (16, 8, 8), stock="flux-to-weigh-soon", conditions=FLUX_TEXT)
# By library, the kinds of weights, how many blocks of them (0: all), and the dtype to compute in.
KINDS = {
    "diffusers": [(WHOLE, 0, "fp32"), (SHARED, 3, "fp32"), (HOST, 0, "bf16")],
    "comfyui": [(WHOLE, 0, "bfloat16"), (SHARED, 0, "float32"), (HOST, 3, "bfloat16")],
}


@pytest.mark.parametrize("library", KINDS)
def test_ranks_take_and_read_what_is_told_of_them(
    library: str, comfyui: Path, ranks: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files in the dtype that is computed in, and in another."""
    monkeypatch.setenv("COMFYUI_PATH", str(comfyui))
    write = {"diffusers": lambda: write_diffusers(SHAPE, tmp_path / "model.safetensors")}
    source = write.get(library, lambda: write_stock(SHAPE, tmp_path))()
    every = list(cases_of(SHAPE, library, source, torch.bfloat16.itemsize, RANKS))
    kinds = [(case["plan"]["weights"], case["plan"]["weight_blocks"], case["source"]["dtype"]) for case in every]
    cases = [every[kinds.index(kind)] for kind in KINDS[library]]
    for line in measure(cases, RANKS, ranks):
        assert not line.missed, line
        assert line.exact
