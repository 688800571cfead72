"""diffusers' VAEs, split by rows over ranks, give what they give on one. Memory is shown by `test_host_vaes.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh import Axis
from parallel_backend.hooks import Hooks
from parallel_backend.vae.pipeline import PipelineVAE, check_vae
from tests.support.cases.vaes.diffusers_vaes import VAES, latents_of
from tests.support.cases.vaes.vae_cases import BF16, CASES, norm_input
from tests.support.host.graphs import relative_error
from tests.support.ranks.pool import RankPool
from tests.support.ranks.vae_ranks import SEED

WORLD = 4  # of which the first and the last have one neighbour, as both of two have, and the others have two
ONE_RANK = Axis(None, 1, 0)
TOLERANCE = 1e-5

Results = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def results(ranks: RankPool) -> Results:
    """What every rank got."""
    return ranks.run(WORLD, "vae_ranks")[0][1]


@pytest.mark.parametrize("name", [*CASES, *VAES])
@torch.no_grad()
def test_each_class_decodes_and_encodes_in_bands_as_it_does_alone(name: str, results: Results) -> None:
    """Long convolutions run in parts there, and whole here."""
    case = {**CASES, **VAES}[name]
    vae = case.build()
    torch.manual_seed(SEED)
    decoded = vae.decode(case.latents(), **case.arguments()).sample
    expected = {"decode": decoded, "encode": latents_of(vae.encode(case.pictures()))}
    for direction, right in expected.items():
        assert right.std() > 0.05, "what is all grey says nothing"
        assert relative_error(results[f"{name} {direction}"], right) <= TOLERANCE, direction
    if name in CASES:
        assert relative_error(results[f"{name} alone"], decoded) <= TOLERANCE, "hooks are to be idle"


@torch.inference_mode()
def test_one_rank_decodes_as_the_vae_does_alone() -> None:
    case = CASES["odd height, batch of 2"]
    expected, vae = case.build().decode(case.latents()).sample, case.build()
    PipelineVAE(vae, ONE_RANK, Hooks())
    assert relative_error(vae.decode(case.latents()).sample, expected) <= TOLERANCE


@torch.inference_mode()
def test_bf16_on_several_ranks_is_as_close_to_fp32_as_on_one(results: Results) -> None:
    plain = replace(BF16, dtype=torch.float32)
    exact = plain.build().decode(plain.latents()).sample
    alone = BF16.build().decode(BF16.latents()).sample
    split = results["bf16 decode"]
    assert split.dtype == torch.bfloat16
    assert F.mse_loss(split.float(), exact) <= 1.1 * F.mse_loss(alone.float(), exact)


def test_norm_statistics_hold_far_from_zero(results: Results) -> None:
    expected = F.group_norm(norm_input().double(), 4, eps=1e-5)
    assert relative_error(results["norm"], expected) <= TOLERANCE
    assert relative_error(F.group_norm(norm_input(), 4, eps=1e-5), expected) <= TOLERANCE, "torch's own, for comparison"


def test_a_vae_that_cannot_be_split_is_refused_with_advice_for_scripts() -> None:
    case = CASES["square"]
    vae = case.build()
    PipelineVAE(vae, ONE_RANK, Hooks())
    vae.enable_tiling()
    with pytest.raises(RequestError, match=r"AutoencoderKL is tiled(.|\n)*pipeline\.vae\.disable_tiling"):
        vae.decode(case.latents())
    with pytest.raises(RequestError, match="is tiled"):
        check_vae(vae)
    with pytest.raises(RequestError, match=r"class Conv2d .* cannot be split(.|\n)*without vae=True"):
        check_vae(torch.nn.Conv2d(1, 1, 1))
    with pytest.raises(RequestError, match="has no VAE"):
        check_vae(None)
