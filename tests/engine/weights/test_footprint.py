"""What a rank takes of memory and reads of the file is what is told of it; `python -m tests.benchmarks.memory` shows it
for larger models. And what this is measured with counts what it says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from parallel_backend.plan import HOST, SHARED, WHOLE
from tests.benchmarks.memory import (
    FLUX_TEXT,
    LIVE,
    LOADING_PRIVATE,
    MB,
    READ,
    Shape,
    cases_of,
    is_off,
    measure,
    write_diffusers,
    write_stock,
)
from tests.support.group.footprint import Highest, Storages, settled_bytes
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


@pytest.mark.parametrize(
    ("name", "found", "is_wrong"),
    [
        (LIVE, 104.2, True),
        (LIVE, 95.8, True),
        (LIVE, 102.9, False),
        (READ, 150, True),
        (LOADING_PRIVATE, 200, True),
        (LOADING_PRIVATE, 50, False),
    ],
)
def test_what_is_not_as_told_is_found(name: str, found: float, is_wrong: bool) -> None:
    assert is_off(name, found * MB, 100 * MB) == is_wrong


def test_what_is_read_of_a_file_is_counted_and_what_is_mapped_is_no_memory(tmp_path: Path) -> None:
    file, size = tmp_path / "values.safetensors", 4 << 20
    save_file({"first": torch.ones(size, dtype=torch.uint8), "second": torch.ones(size, dtype=torch.uint8)}, file)
    with Storages([str(file)]) as storages, safe_open(file, framework="pt") as opened:
        first, second = opened.get_tensor("first"), opened.get_tensor("second")
        opening = storages.read_bytes  # a byte of each, which is looked at as a tensor is made of it
        assert storages.live == 0 and opening <= 2
        kept = [first[: size // 2].clone(), first[size // 4 : size // 2].clone()]
        assert (storages.live, storages.read_bytes) == (3 * size // 4, size // 2 + 1)
        kept.append(second.to(torch.float32))
        assert (storages.live, storages.read_bytes) == (3 * size // 4 + 4 * size, size // 2 + size)
        kept.clear()
        assert storages.live == 0 < storages.peak == 3 * size // 4 + 4 * size


def test_the_most_memory_is_found_of_what_was_taken_meanwhile() -> None:
    before = settled_bytes()
    taken, until = 63 << 20, time.monotonic() + 60
    with Highest() as highest:
        kept = torch.ones(64 << 20, dtype=torch.uint8).add_(1)
        while highest.bytes - before < taken and time.monotonic() < until:
            time.sleep(0.01)
        del kept
    assert highest.bytes - before >= taken
