"""A file that the ranks run by ComfyUI's own class draws what ComfyUI's own loader draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from demo.host import ComfyHost
from tests.support.cases.stock_cases import HOST_CASES
from tests.support.host.graphs import latents, relative_error
from tests.support.host.stock_prompts import prompt, write_cases

TOLERANCE = 1e-5
PLANS = [{"cfg": 2}, {"ulysses": 2}, {"ring": 2}]


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> Path:
    """The folder with the models of all cases."""
    write_cases(comfyui, models, list(HOST_CASES))
    return models / "models" / "diffusion_models"


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: Path) -> Callable[[str], torch.Tensor]:
    """By case, the latents that ComfyUI's own loader's MODEL samples."""
    return cache(lambda name: latents(host, prompt(name)))


@pytest.mark.parametrize("name", HOST_CASES)
def test_one_rank_gives_the_stock_loaders_bits(name: str, host: ComfyHost, stock: Callable) -> None:
    assert torch.equal(latents(host, prompt(name, {"cfg": 1})), stock(name))


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", HOST_CASES)
def test_a_file_on_ranks_draws_what_the_stock_loader_draws(
    name: str, plan: dict[str, int], host: ComfyHost, stock: Callable
) -> None:
    assert relative_error(latents(host, prompt(name, plan)), stock(name)) <= TOLERANCE
