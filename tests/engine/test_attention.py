"""Attention over shared tokens equals attention over all of them, with and without a mask."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from parallel_backend.hooks import Hooks
from parallel_backend.seams.attention import install_attention
from parallel_backend.seams.exchange.differences import from_half_bytes, to_half_bytes
from parallel_backend.seams.forward import ForwardSlot
from tests.support.cases.attention_cases import BATCH, CASES, HEAD_DIM, MASKS, PATCHES, STEPS, TOKENS, mask, qkv
from tests.support.cases.references import relative_error
from tests.support.ranks.pool import RankPool

LOSSY_ERROR = {"sage": 0.03}  # relative


@pytest.fixture(scope="module")
def results(ranks: RankPool) -> dict[int, list[dict[str, torch.Tensor]]]:
    """Every rank's results, by world size."""
    return {world: [found for _, found in ranks.run(world, "attention_ranks")] for world in CASES}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size, block", [(8, 8), (64, 64), (67, 1), (72, 36), (128, 64), (160, 40)])
def test_a_number_that_travels_in_half_a_byte_is_off_by_no_more_than_is_said(
    size: int, block: int, dtype: torch.dtype
) -> None:
    """Also where one number of a head is a thousand times as large as the others, and where all are 0."""
    values = torch.randn(3, 4, 50, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    values[0, 0] = 0
    values[1, :, :, size // 2] *= 1000
    encoded = to_half_bytes(values)
    assert encoded.shape[-1] == -(-size // 2) + 2 * size // block
    got = from_half_bytes(encoded, size, dtype)
    assert got.dtype == dtype and torch.equal(got[0, 0], values[0, 0])
    error, exact = (got.float() - values.float()).abs(), values.float()
    # Its own dtype rounds what is sent, too: the number before it is rounded, the scaled number and the result.
    rounding = 4 * torch.finfo(dtype).eps * exact.abs()
    largest = exact.abs().unflatten(-1, (-1, block)).amax(-1).repeat_interleave(block, -1)
    assert (error <= largest / 13 + rounding).all()


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
            if case.is_lossy(kind):
                assert 1e-3 < relative_error(rank[key], wanted) < LOSSY_ERROR[case.kernel]
            else:
                assert torch.allclose(rank[key], wanted, rtol=1e-5, atol=1e-5)


def test_differences_to_the_step_before_take_half_a_byte_and_their_errors_do_not_add_up(
    results: dict[int, list[dict[str, torch.Tensor]]],
) -> None:
    name = "ulysses, int4"
    case = CASES[2][name]
    for rank in results[2]:
        sent = [int(rank[f"{name} step {step} sent"]) for step in range(STEPS)]
        assert sent[1:] == [sent[0] * (HEAD_DIM // 2 + 2) // (4 * HEAD_DIM)] * (STEPS - 1)
        for step in range(STEPS):
            query, *keys = qkv(case, step)
            key, value = (each.repeat_interleave(case.heads // case.kv_heads, 1) for each in keys)
            wanted = F.scaled_dot_product_attention(query, key, value)[:, :, rank[f"{name} none 1 [0] positions"]]
            error = relative_error(rank[f"{name} step {step}"], wanted)
            assert 1e-3 < error < 0.02 if step else error < 1e-6  # in four bits by itself, 0.2
        # A rank keeps queries, keys, values and results where it sent them and where they arrived. Both ranks need
        # the second of three key heads here.
        tokens = len(rank[f"{name} none 1 [0] positions"])
        own, arrived = tokens * (6 + 2 * 2 + 6), TOKENS * (3 + 2 * 1 + 3)
        assert int(rank[f"{name} kept"]) == BATCH * HEAD_DIM * 4 * (own + arrived)


class OwnAttention(torch.nn.Module):
    """Attends by matrix products."""

    def forward(self, tokens_BSD: torch.Tensor) -> torch.Tensor:
        return (tokens_BSD @ tokens_BSD.mT).softmax(-1) @ tokens_BSD


def test_a_module_that_attends_in_its_own_way_is_named() -> None:
    """It would see this rank's tokens alone."""
    block, slot = torch.nn.Sequential(OwnAttention()), ForwardSlot()
    install_attention(block, "0", [F.scaled_dot_product_attention], Hooks(), slot)
    with pytest.raises(RuntimeError, match="OwnAttention does not attend through scaled_dot_product_attention"):
        block(torch.zeros(1, 4, 8))
