"""What a rank takes of memory and reads of the file is what is told of it; `python -m tests.benchmarks.memory` shows it
for larger models."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_backend.plan import HOST, SHARED, WHOLE
from tests.benchmarks.memory import FLUX_TEXT, Shape, cases_of, measure, write_model
from tests.support.ranks.pool import RankPool

RANKS = 2
# 70 MB in bf16, the largest block 19.
BLOCKS = {"num_attention_heads": 4, "num_layers": 2, "num_single_layers": 4}
SHAPE = Shape("flux-dev", BLOCKS, (16, 8, 8), stock="flux-to-weigh-soon", conditions=FLUX_TEXT)
# By library, the kinds of weights, and how many blocks of them (0: all).
KINDS = {"diffusers": [(WHOLE, 0), (SHARED, 3), (HOST, 0)], "comfyui": [(WHOLE, 0), (SHARED, 0), (HOST, 3)]}


@pytest.mark.parametrize("library", KINDS)
def test_ranks_take_and_read_what_is_told_of_them(
    library: str, comfyui: Path, ranks: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFYUI_PATH", str(comfyui))
    every = list(cases_of(SHAPE, library, write_model(SHAPE, library, tmp_path), RANKS))
    kinds = [(case["plan"]["weights"], case["plan"]["weight_blocks"]) for case in every]
    cases = [every[kinds.index(kind)] for kind in KINDS[library]]
    for line in measure(cases, RANKS, ranks):
        assert not line.missed, line
        assert line.exact
