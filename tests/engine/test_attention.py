"""Attention over shared tokens equals attention over all of them, with and without a mask."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tests.support.cases.attention_cases import BATCH, CASES, HEAD_DIM, MASKS, PATCHES, mask, qkv
from tests.support.cases.references import relative_error
from tests.support.ranks.pool import RankPool

FP8_ERROR = 0.06  # relative: 2 to 3 % of each of queries, keys, values and the result


@pytest.fixture(scope="module")
def results(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, torch.Tensor]]]:
    """Every rank's results, by world size."""
    root = tmp_path_factory.mktemp("attention")
    results = {}
    for world in CASES:
        out = root / f"world{world}"
        ranks.run(world, "attention_ranks", str(out))
        results[world] = [load_file(f"{out}.{rank}") for rank in range(world)]
    return results


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("patches", [1, PATCHES])
@pytest.mark.parametrize("world, name", [(world, name) for world, cases in CASES.items() for name in cases])
def test_shared_tokens_attend_as_all_tokens_do(
    world: int, name: str, patches: int, kind: str, results: dict[int, list[dict[str, torch.Tensor]]]
) -> None:
    case = CASES[world][name]
    query, *keys = qkv(case)
    key, value = (each.repeat_interleave(case.heads // case.kv_heads, 1) for each in keys)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask(kind, case))
    for run in [list(range(patches)), *([index] for index in range(patches) if patches > 1)]:
        key = f"{name} {kind} {patches} {run}"
        for rank in results[world]:
            wanted = expected[:, :, rank[f"{key} positions"]]
            if case.is_lossy:
                assert 1e-3 < relative_error(rank[key], wanted) < FP8_ERROR
            else:
                assert torch.allclose(rank[key], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("world, name", [(world, name) for world, cases in CASES.items() for name in cases])
def test_a_rank_sends_the_heads_that_others_need_and_no_more(
    world: int, name: str, results: dict[int, list[dict[str, torch.Tensor]]]
) -> None:
    case, key = CASES[world][name], f"{name} none 1 [0]"
    ulysses, ring = (case.plan.get(axis, 1) for axis in ("ulysses", "ring"))
    number = HEAD_DIM + 4 if case.is_lossy else 4 * HEAD_DIM  # bytes of a token's head
    owners = [rank for rank, count in enumerate(case.share_out(case.heads, ulysses)) for _ in range(count)]
    group = case.heads // case.kv_heads
    needed = [{head // group for head, owner in enumerate(owners) if owner == rank} for rank in range(ulysses)]
    tokens = [len(rank[f"{key} positions"]) for rank in results[world]]
    for rank, found in enumerate(results[world]):
        others = [other for other in range(world) if other // ulysses == rank // ulysses and other != rank]
        heads = sum(owners.count(other % ulysses) + 2 * len(needed[other % ulysses]) for other in others)
        back = owners.count(rank % ulysses) * sum(tokens[other] for other in others)
        held = [sum(tokens[place : place + ulysses]) for place in range(0, world, ulysses)]
        passed_on = sum(held) - held[(rank // ulysses + 1) % ring]  # each block but that of the rank after
        wanted = tokens[rank] * heads + back + (2 * len(needed[rank % ulysses]) * passed_on if ring > 1 else 0)
        assert found[f"{key} sent"] == BATCH * number * wanted
