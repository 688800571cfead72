"""UNets in use (inpainting, a refiner, video and others) draw on several ranks what the stock loader draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.cases.files.unet_cases import UNETS
from tests.support.files.write_gguf import write_gguf
from tests.support.host.graphs import GROUPS_BY_SIZE, latents, relative_error
from tests.support.host.stock_prompts import prompt, write_cases
from tests.support.tiers import running, slow_but

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
IN_GGUF = "sdxl"
STEPS = {"svd": 3, "sv3d": 3}  # of so much noise, two steps leave last bits that show
WAYS = {"one rank": {"cfg": 1}, "two ranks": {"ulysses": 2}, "four ranks": {"ring": 2, "ulysses": 2}}
# The gate has one rank for each kind of layers, four ranks once, and on two ranks those that differ in their layers or
# inputs. test_host_models.py has four ranks of each class.
GATE = [
    *("sdxl, one rank", "svd, one rank", "ssd-1b, four ranks"),
    *(f"{name}, two ranks" for name in ("sd15-inpainting", "sdxl", "sdxl-refiner", "svd")),
]


@pytest.fixture(scope="module")
def stock(
    request: pytest.FixtureRequest, comfyui: Path, models: Path, host: ComfyHost
) -> Callable[[str], torch.Tensor]:
    """By case, what the stock loader's model draws."""
    write_cases(comfyui, models, {IN_GGUF, *(name for (name,) in running(request, "name"))})
    return cache(lambda name: latents(host, prompt(name, steps=STEPS.get(name, 2))))


@pytest.mark.parametrize(
    ("name", "plan"), slow_but(GATE, {f"{name}, {how}": (name, plan) for how, plan in WAYS.items() for name in UNETS})
)
def test_a_unet_in_bands_of_rows_draws_what_the_stock_loader_draws(
    name: str, plan: dict[str, int], host: ComfyHost, stock: Callable[[str], torch.Tensor]
) -> None:
    group = GROUPS_BY_SIZE[math.prod(plan.values())]
    drawn = latents(host, prompt(name, plan, group=group, steps=STEPS.get(name, 2)))
    assert stock(name).std() > 0.01, "a model that draws nothing shows nothing"
    if plan == {"cfg": 1}:
        assert torch.equal(drawn, stock(name))
    assert relative_error(drawn, stock(name)) <= TOLERANCE


def test_a_unet_in_gguf_draws_what_the_stock_loader_draws_of_its_values(
    host: ComfyHost, models: Path, stock: Callable[[str], torch.Tensor]
) -> None:
    name, folder = IN_GGUF, models / "models" / "diffusion_models"
    plain = folder / f"{name}.safetensors"
    with safe_open(plain, "pt") as file:
        metadata = file.metadata()
    values = write_gguf(load_file(plain), folder / f"{name}.gguf", ["Q8_0"], metadata)
    save_file(values, folder / f"{name}-values.safetensors", metadata)
    right = latents(host, prompt(name, model=f"{name}-values.safetensors", steps=2))
    assert relative_error(right, stock(name)) > 1e-4, "the format changes nothing"
    for plan in (WAYS["two ranks"], {**WAYS["two ranks"], "weights": "shared"}):
        drawn = latents(host, prompt(name, plan, model=f"{name}.gguf", group=GROUPS_BY_SIZE[2], steps=2))
        assert relative_error(drawn, right) <= TOLERANCE
