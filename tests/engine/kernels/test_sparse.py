"""Sparse attention is the pattern that the pages state, on every number of ranks; and it is refused where it cannot be.

Shapes: B batch, H heads, S tokens, D head dim.
"""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.nn.attention.flex_attention import flex_attention

from parallel_backend.errors import PlanError, RequestError
from parallel_backend.groups.mesh import Axis
from parallel_backend.models.checks import check_module
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.forward import Forward, ForwardSlot
from parallel_backend.seams.kernels import flex
from parallel_backend.seams.kernels.sparse import SparsePattern, SparsePatterns
from parallel_backend.seams.layout import TokenLayout
from parallel_backend.video import WIDTHS, Video, tile_pairs, video_of
from tests.support.cases.families import FAMILIES
from tests.support.cases.references import relative_error
from tests.support.fakes.sparse_pattern import WIDTH, pattern, tile_length, with_text
from tests.support.ranks.pool import RankPool

CPU = torch.device("cpu")
TOLERANCE = 1e-5
VIDEOS = [(2, 5), (3, 1), (9, 35), (21, 12), (17, 64), (40, 9), (3, 1100)]
ROWS = ("wan-t2v", "hunyuanvideo", "cogvideox", "diffusers wan-t2v")
# cfg alone shares no tokens: ComfyUI's classes then attend by this package only because of the pattern.
PLANS = {
    2: [{"ulysses": 2, "sparse": "radial"}, {"cfg": 2, "sparse": "radial_narrow"}],
    4: [
        {"ulysses": 4, "sparse": "radial_narrow"},
        {"ulysses": 2, "cfg": 2, "sparse": "radial", "speeds": [1, 0.5, 1, 1]},
    ],
}


def pattern_of(frames: int, tokens: int, sparse: str, before: int, after: int) -> SparsePattern:
    """The engine's pattern on one rank, for a picture between other tokens."""
    layout = TokenLayout("img", Axis(None, 1, 0), ForwardSlot())
    streams = ("before", "img", "after")
    with layout.slot.enter(Forward([0], video=Video(frames, tokens))):
        for stream, length in zip(streams, (before, frames * tokens, after), strict=True):
            layout.learn((stream,), length)
        found = SparsePatterns(sparse, layout).find(streams, streams, range(1), CPU)
    assert found
    return found


@pytest.mark.parametrize("sparse", WIDTHS)
@pytest.mark.parametrize("frames, tokens", VIDEOS)
def test_tiles_see_each_other_if_any_of_their_tokens_do(frames: int, tokens: int, sparse: str) -> None:
    video = Video(frames, tokens)
    assert video.tile == tile_length(tokens)
    tile = torch.arange(frames * tokens) // video.tile
    found = tile_pairs(video, WIDTHS[sparse], CPU)[tile][:, tile]
    assert torch.equal(found, pattern(frames, tokens, sparse))
    assert dict(WIDTHS) == WIDTH


@pytest.mark.parametrize("sparse", WIDTHS)
@pytest.mark.parametrize("before, after", [(0, 0), (5, 0), (0, 7), (3, 4)])
def test_text_sees_all_and_is_seen_by_all(before: int, after: int, sparse: str) -> None:
    query, key, value = torch.randn(3, 2, 3, before + 9 * 35 + after, 8)
    mask = with_text(pattern(9, 35, sparse), before, after)
    assert not mask.all()
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3)
    with patch("parallel_backend.seams.kernels.sparse.QUERIES", 100):
        found = pattern_of(9, 35, sparse, before, after).attend(query, key, value, 0.3)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sparse", WIDTHS)
def test_two_frames_see_each_other_wholly(sparse: str) -> None:
    own, (query, key, value) = pattern_of(2, 35, sparse, 0, 3), torch.randn(3, 1, 2, 73, 8)
    assert own.pairs.all()
    wanted = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(own.attend(query, key, value, None), wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("sparse", WIDTHS)
@pytest.mark.parametrize("frames, tokens, before, after", [(9, 200, 0, 0), (6, 300, 77, 5), (2, 40, 0, 3)])
def test_the_gpus_mask_skips_the_blocks_that_nothing_sees(
    frames: int, tokens: int, before: int, after: int, sparse: str
) -> None:
    """Flex attention without compiling computes every block, so the blocks are compared apart from the result."""
    own = pattern_of(frames, tokens, sparse, before, after)
    mask, blocks = with_text(pattern(frames, tokens, sparse), before, after), own.block_mask
    size = blocks.shape[-1]
    assert size == len(mask) and blocks.BLOCK_SIZE == (flex.BLOCK, flex.BLOCK)
    padded = F.pad(mask, (0, -size % flex.BLOCK, 0, -size % flex.BLOCK))
    of_blocks = padded.unflatten(0, (-1, flex.BLOCK)).unflatten(2, (-1, flex.BLOCK)).movedim(1, 2).flatten(2)
    assert torch.equal(blocks.to_dense()[0, 0].bool(), of_blocks.any(-1))
    for row, count in enumerate(blocks.full_kv_num_blocks[0, 0]):
        places = blocks.full_kv_indices[0, 0, row, :count].tolist()
        assert sorted(places) == of_blocks[row].all(-1).nonzero().flatten().tolist()
    query, key, value = torch.randn(3, 1, 2, size, 16)
    with patch.object(flex, "compile_flex", lambda: flex_attention):
        found = flex.flex_attention(query, key, value, blocks, 0.3)
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.slow  # the compiler takes a minute
def test_the_compiled_kernel_computes_the_pattern() -> None:
    own = pattern_of(9, 200, "radial", 0, 30)
    query, key, value = torch.randn(3, 1, 2, 1830, 16)
    mask = with_text(pattern(9, 200, "radial"), 0, 30)
    with torch.inference_mode():
        found = flex.flex_attention(query, key, value, own.block_mask, 0.3)
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_a_pattern_is_built_once_for_each_size() -> None:
    layout = TokenLayout("img", Axis(None, 1, 0), ForwardSlot())
    patterns = SparsePatterns("radial", layout)

    def find(frames: int, text: int, video: Video | None) -> SparsePattern | None:
        with layout.slot.enter(Forward([0], video=video)):
            for stream, length in (("img", 35 * frames), ("txt", text)):
                layout.learn((stream,), length)
            return patterns.find(("img", "txt"), ("img", "txt"), range(1), CPU)

    first = find(9, 4, Video(9, 35))
    assert first and find(9, 4, Video(9, 35)) is first
    assert find(9, 5, Video(9, 35)) is not first
    assert find(9, 4, Video(9, 35)) is first
    assert find(9, 4, None) is None, "a dense step"
    more = find(10, 4, Video(9, 35))  # a reference frame
    assert more and len(more.tile_of_S) == 354


def test_a_picture_without_frames_is_refused() -> None:
    assert video_of((1, 16, 9, 10, 15), (1, 2, 2)) == Video(9, 40)
    with pytest.raises(RequestError, match=r"is for video, and these latents \(1×16×64×64\) have no frames"):
        video_of((1, 16, 64, 64), (2, 2))
    with pytest.raises(RequestError, match="no frames or one"):
        video_of((1, 16, 1, 64, 64), (1, 2, 2))
    with pytest.raises(RequestError, match="has 316 tokens for 9 frames of 35"):
        Video(9, 35).of_stream(316)


def test_a_plan_that_cannot_be_sparse_is_refused_with_what_to_do() -> None:
    model = FAMILIES["wan-t2v"].build()
    for plan, advice in (
        ({"ring": 2, "ulysses": 2}, "ring=2: under ring.*\n\nUse ring=1 and ulysses=4"),
        ({"pipefusion": 2}, "PipeFusion.*\n\nUse pipefusion=1"),
    ):
        with pytest.raises(PlanError, match=f"(?s)sparse=radial does not work with {advice}"):
            check_module(ParallelPlan(sparse="radial", **plan), model)
    with pytest.raises(PlanError, match="does not know which of its tokens are frames"):
        check_module(ParallelPlan(sparse="radial", ulysses=2), FAMILIES["qwenimage"].build())
    check_module(ParallelPlan(sparse="radial", ulysses=2), model)
    assert "radial sparse attention after 3 dense" in str(ParallelPlan(sparse="radial", sync_steps=3))


@pytest.fixture(scope="module")
def results(
    ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, torch.Tensor]]:
    found = {}
    for world, plans in PLANS.items():
        out = tmp_path_factory.mktemp("sparse") / str(world)
        ranks.run(world, "sparse_ranks", str(out), *map(json.dumps, plans))
        found[world] = load_file(out)
    return found


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("world, plan", [(world, plan) for world, plans in PLANS.items() for plan in plans], ids=str)
def test_ranks_compute_the_first_step_densely_and_then_the_pattern(
    row: str, world: int, plan: dict[str, object], results: dict[int, dict[str, torch.Tensor]]
) -> None:
    key = f"{row} {json.dumps(plan)}"
    for place, kind in enumerate(("dense", "sparse", "sparse")):
        found = {name: results[world][f"{key} {place}{name}"] for name in ("", " dense", " sparse")}
        assert relative_error(found[""], found[f" {kind}"]) <= TOLERANCE
        assert relative_error(found[" sparse"], found[" dense"]) > 100 * TOLERANCE


@pytest.mark.parametrize("world", PLANS)
def test_a_model_that_masks_its_attention_stays_dense_and_says_so(
    world: int, results: dict[int, dict[str, torch.Tensor]]
) -> None:
    found = results[world]
    for place in range(3):
        assert relative_error(found[f"masked {place}"], found[f"masked {place} dense"]) <= TOLERANCE
    assert found["masked said"].bool().tolist() == [False, True, True, True], "the first step is dense anyway"
