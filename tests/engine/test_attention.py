"""Attention over shared tokens equals attention over all of them, with and without a mask."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tests.support.cases.attention_cases import MASKS, PATCHES, plans, qkv
from tests.support.ranks.pool import RankPool

CASES = [(world, name) for world in (2, 4) for name in plans(world)]


@pytest.fixture(scope="module")
def results(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, torch.Tensor]]]:
    """Every rank's results, by world size."""
    root = tmp_path_factory.mktemp("attention")
    results = {}
    for world in sorted({world for world, _ in CASES}):
        out = root / f"world{world}"
        ranks.run(world, "attention_ranks", str(out))
        results[world] = [load_file(f"{out}.{rank}") for rank in range(world)]
    return results


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("patches", [1, PATCHES])
@pytest.mark.parametrize("world, name", CASES)
def test_shared_tokens_attend_as_all_tokens_do(
    world: int, name: str, patches: int, mask: str, results: dict[int, list[dict[str, torch.Tensor]]]
) -> None:
    expected = F.scaled_dot_product_attention(*qkv(), attn_mask=MASKS[mask])
    for run in [list(range(patches)), *([index] for index in range(patches) if patches > 1)]:
        key = f"{name} {mask} {patches} {run}"
        for rank in results[world]:
            wanted = expected[:, :, rank[f"{key} positions"]]
            assert torch.allclose(rank[key], wanted, rtol=1e-5, atol=1e-5)
