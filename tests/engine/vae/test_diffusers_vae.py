"""diffusers' VAEs, split by rows over ranks, give what they give on one, and a rank needs its share of the memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh import Axis
from parallel_backend.vae.pipeline import PipelineVAE, check_vae
from tests.support.cases.vaes.diffusers_vaes import VAES, latents_of
from tests.support.cases.vaes.vae_cases import BF16, CASES, Case, norm_input, relative_error
from tests.support.ranks.pool import RankPool
from tests.support.ranks.vae_ranks import SEED
from tests.support.tiers import running

# Of four ranks, the first and the last have one neighbour, as both of two have, and the others have two.
WORLDS = (pytest.param(2, marks=pytest.mark.slow), 4)
ONE_RANK = Axis(None, 1, 0)
TOLERANCE = 1e-5

Run = tuple[dict[str, torch.Tensor], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    """By world size: what every rank got, and what each rank measured on the large case."""
    root = tmp_path_factory.mktemp("vae")
    runs = {}
    for world in {1} | {world for (world,) in running(request, "world")}:
        out = root / f"world{world}"
        ranks.run(world, "vae_ranks", str(out))
        measured = [json.loads(Path(f"{out}.{rank}.json").read_text()) for rank in range(world)]
        runs[world] = load_file(f"{out}.safetensors"), measured
    return runs


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("world", WORLDS)
@torch.inference_mode()
def test_split_rows_decode_as_the_whole_latent_does(world: int, name: str, runs: dict[int, Run]) -> None:
    case = CASES[name]
    expected = case.build().decode(case.latents()).sample
    assert relative_error(runs[world][0][f"{name} decode"], expected) <= TOLERANCE
    assert relative_error(runs[world][0][f"{name} alone"], expected) <= TOLERANCE, "hooks are to be idle"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("world", WORLDS)
@torch.inference_mode()
def test_split_rows_encode_as_the_whole_image_does(world: int, name: str, runs: dict[int, Run]) -> None:
    case = CASES[name]
    expected = case.build().encode(case.image()).latent_dist.mean
    assert relative_error(runs[world][0][f"{name} encode"], expected) <= TOLERANCE


@pytest.mark.parametrize("name", VAES)
@pytest.mark.parametrize("world", WORLDS)
@torch.no_grad()
def test_each_class_decodes_and_encodes_in_bands_as_it_does_alone(world: int, name: str, runs: dict[int, Run]) -> None:
    """Long convolutions run in parts there, and whole here."""
    vae, case = VAES[name].build(), VAES[name]
    torch.manual_seed(SEED)
    decoded = vae.decode(case.latents(), **case.arguments()).sample
    expected = {"decode": decoded, "encode": latents_of(vae.encode(case.pictures()))}
    for direction, right in expected.items():
        assert right.std() > 0.05, "what is all grey says nothing"
        assert relative_error(runs[world][0][f"{name} {direction}"], right) <= TOLERANCE, direction


@pytest.mark.parametrize("world", WORLDS)
def test_a_latent_of_128_decodes_on_several_ranks_as_on_one(world: int, runs: dict[int, Run]) -> None:
    assert relative_error(runs[world][0]["large"], runs[1][0]["large"]) <= TOLERANCE


@torch.inference_mode()
def test_one_rank_decodes_as_the_vae_does_alone() -> None:
    case = CASES["odd height, batch of 2"]
    expected, vae = case.build().decode(case.latents()).sample, case.build()
    PipelineVAE(vae, ONE_RANK)
    assert relative_error(vae.decode(case.latents()).sample, expected) <= TOLERANCE


@pytest.mark.parametrize("world, share", [pytest.param(2, 0.6, marks=pytest.mark.slow), (4, 0.35)])
def test_each_rank_needs_its_share_of_the_memory(world: int, share: float, runs: dict[int, Run]) -> None:
    ((_, [one]), (_, ranks)) = runs[1], runs[world]
    assert max(rank["peak"] for rank in ranks) < share * one["peak"]


@pytest.mark.parametrize("world", WORLDS)
@torch.inference_mode()
def test_bf16_on_several_ranks_is_as_close_to_fp32_as_on_one(world: int, runs: dict[int, Run]) -> None:
    exact = replace(BF16, dtype=torch.float32).build().decode(BF16.latents()).sample
    alone = BF16.build().decode(BF16.latents().bfloat16()).sample
    split = runs[world][0]["bf16 decode"]
    assert split.dtype == torch.bfloat16
    assert F.mse_loss(split.float(), exact) <= 1.1 * F.mse_loss(alone.float(), exact)


@pytest.mark.parametrize("world", WORLDS)
def test_norm_statistics_hold_far_from_zero(world: int, runs: dict[int, Run]) -> None:
    expected = F.group_norm(norm_input().double(), 4, eps=1e-5)
    assert relative_error(runs[world][0]["norm"], expected) <= TOLERANCE
    assert relative_error(F.group_norm(norm_input(), 4, eps=1e-5), expected) <= TOLERANCE, "torch's own, for comparison"


def test_a_vae_that_cannot_be_split_is_refused_with_advice_for_scripts() -> None:
    vae = Case().build()
    PipelineVAE(vae, ONE_RANK)
    vae.enable_tiling()
    with pytest.raises(RequestError, match=r"AutoencoderKL is tiled(.|\n)*pipeline\.vae\.disable_tiling"):
        vae.decode(Case().latents())
    with pytest.raises(RequestError, match="is tiled"):
        check_vae(vae)
    with pytest.raises(RequestError, match=r"class Conv2d .* cannot be split(.|\n)*without vae=True"):
        check_vae(torch.nn.Conv2d(1, 1, 1))
    with pytest.raises(RequestError, match="has no VAE"):
        check_vae(None)
