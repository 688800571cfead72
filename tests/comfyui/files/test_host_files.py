"""A file that the ranks run by ComfyUI's own class, with Parallelize Model behind the stock loader, draws what it draws
without the node."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.cases.files.host_cases import HOST_CASES
from tests.support.host.graphs import (
    GROUPS_BY_SIZE,
    latents,
    relative_error,
    with_lora,
)
from tests.support.host.stock_prompts import STEPS, prompt, write_cases
from tests.support.programs import run_program

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
PLANS = [{"cfg": 1}, {"cfg": 2}, {"ulysses": 2}, {"ring": 2}]
EVEN = (1, 16, 8, 12)  # a latent that falls into patches
SYNCHRONOUS = [{"pipefusion": 2, "patches": 1}, {"pipefusion": 2, "patches": 3, "sync_steps": 10}]
QUANTISED = "longcat-image"


def ours(name: str, plan: dict[str, int], **options: Any) -> dict:
    """A prompt with Parallelize Model, on the group of that many ranks."""
    return prompt(name, plan, group=GROUPS_BY_SIZE[math.prod(plan.values())], **options)


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> Path:
    """The folder with the models of all cases."""
    write_cases(comfyui, models, list(HOST_CASES))
    return models / "models" / "diffusion_models"


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: Path) -> Callable[[str], torch.Tensor]:
    """By case, the latents that ComfyUI's own loader's MODEL samples."""
    return cache(lambda name: latents(host, prompt(name)))


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", HOST_CASES)
def test_a_file_on_ranks_draws_what_the_stock_loader_draws(
    name: str, plan: dict[str, int], host: ComfyHost, stock: Callable
) -> None:
    """To the bit on one rank."""
    allowed = 0.0 if plan == {"cfg": 1} else TOLERANCE
    assert relative_error(latents(host, ours(name, plan)), stock(name)) <= allowed


# The shift of ComfyUI's sampling of a case; each plan is exact.
SAMPLED = [
    pytest.param(name, shift, plan, id=f"{name}-{plan}")
    for name, shift, plans in (
        ("longcat-image", math.exp(1.15), [*SYNCHRONOUS, {"cfg": 1}, {"cfg": 2}, {"ulysses": 2}]),
        ("wan-2.1-vace", 8.0, [{"cfg": 1}, {"ring": 2}]),
    )
    for plan in plans
]


def shifted(shift: float) -> list[float]:
    """The sigmas of Euler flow, as diffusers defines them: from 1 to 1 / steps, shifted, and 0."""
    return [shift * (left := 1 - step / STEPS) / (1 + (shift - 1) * left) for step in range(STEPS)] + [0.0]


@pytest.mark.parametrize(("name", "shift", "plan"), SAMPLED)
def test_the_parallel_sampler_is_the_stock_euler_over_its_sigmas(
    name: str, shift: float, plan: dict[str, int], host: ComfyHost, files: Path
) -> None:
    size = EVEN if "patches" in plan else ()
    right = latents(host, prompt(name, sigmas=shifted(shift), size=size))
    degrees = {axis: degree for axis, degree in plan.items() if axis not in ("patches", "sync_steps")}
    group = GROUPS_BY_SIZE[math.prod(degrees.values())]
    assert (
        relative_error(latents(host, prompt(name, plan, group=group, scheduler="model's own", size=size)), right)
        <= TOLERANCE
    )


def test_with_dynamicvram_small_layers_stay_as_they_are_in_the_file(comfyui: Path, files: Path) -> None:
    """A ComfyUI on a card of NVIDIA's rounds only layers of more than 16 KB to the model's dtype, here fp8."""
    run_program(comfyui, "tests.support.files.quantise", files / f"{QUANTISED}.safetensors", "plain fp8")
    file = files / f"{QUANTISED}-plain fp8.safetensors"
    stored, layers = load_file(file), Counter[str]()
    for name, weight in stored.items():
        layers[name.rpartition(".")[0]] += weight.nbytes
    rounded, kept = json.loads(run_program(comfyui, "tests.support.files.small_layers", file))
    assert {dtype for dtype, _ in rounded.values()} == {"float8_e4m3fn"}
    small = {name for name in stored if layers[name.rpartition(".")[0]] <= 16384}
    assert {name for name, (_, same) in kept.items() if same} == small | {
        name for name, weight in stored.items() if weight.dtype == torch.float8_e4m3fn
    }
    assert {dtype for name, (dtype, _) in kept.items() if name not in small} == {"float8_e4m3fn"}
    source = (comfyui / "comfy" / "model_patcher.py").read_text()
    assert "module_mem > 16 * 1024" in source, "ComfyUI's rule is another"


def test_an_adapter_for_another_model_changes_nothing_and_is_told_of(host: ComfyHost, files: Path) -> None:
    tensors = {f"diffusion_model.elsewhere.lora_{end}.weight": torch.ones(4, 4) for end in ("up", "down")}
    save_file(tensors, files.parent / "loras" / "elsewhere.safetensors")

    adapted = with_lora("elsewhere.safetensors", 1.0)
    plain = latents(host, ours(QUANTISED, {"ulysses": 2}))
    assert torch.equal(latents(host, ours(QUANTISED, {"ulysses": 2}, patch=adapted)), plain)
    assert "This LoRA changes nothing: none of its keys is a weight of the model." in host.log.read_text()
