"""The stock Load LoRA nodes behind Parallelize Model: the image that they give without it, and the base again. The
census has every kind of adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.cases.stock_cases import CASES
from tests.support.files.adapters import make_lora
from tests.support.host.graphs import Job, Patch, bypass, latents, ranks, relative_error, status, with_lora
from tests.support.host.stock_prompts import write_cases

pytestmark = pytest.mark.usefixtures("groups_by_size")

STOCK_TOLERANCE = 1e-4
TEXT = {"positive": "text.safetensors", "negative": "other-text.safetensors"}
NAMES = ("sd3.5", "flux-dev")


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> None:
    """The models and the LoRA that the tests here name."""
    write_cases(comfyui, models, NAMES)
    for name in NAMES:
        weights = load_file(models / "models" / "diffusion_models" / f"{name}.safetensors")
        save_file(make_lora(weights), models / "models" / "loras" / f"{name}.safetensors")


def job(name: str, **changes: object) -> Job:
    call = Job(f"{name}.safetensors", **TEXT, seed=3, cfg=CASES[name].cfg, width=128, height=96)
    return replace(call, **{"plan": {"cfg": 1}, "group": None, **changes})


def adapted(name: str, strength: float = 0.8) -> Patch:
    return with_lora(f"{name}.safetensors", strength)


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: None) -> Callable[[str, float], torch.Tensor]:
    """What ComfyUI's own model code samples with the LoRA at a strength."""
    return cache(lambda name, strength: latents(host, bypass(job(name).prompt(adapted(name, strength)))))


def test_stages_with_some_of_the_layers_apply_what_is_theirs(host: ComfyHost, files: None) -> None:
    """With synchronous steps alone, PipeFusion computes what one rank does."""
    one = job("flux-dev", scheduler="Euler flow")
    staged = replace(one, plan={"cfg": 1, "pipefusion": 2, "patches": 2, "sync_steps": one.steps})
    right = latents(host, one.prompt(adapted("flux-dev")))
    assert relative_error(right, latents(host, one.prompt())) > 0.01
    assert relative_error(latents(host, staged.prompt(adapted("flux-dev"))), right) <= STOCK_TOLERANCE


@pytest.mark.parametrize(("name", "plan"), [("sd3.5", {"cfg": 1}), ("flux-dev", {"cfg": 1, "ulysses": 2})], ids=str)
def test_another_strength_and_its_removal_load_no_model(
    name: str, plan: dict[str, int], host: ComfyHost, files: Path, stock: Callable
) -> None:
    strengths = (0.8, 0.3)
    right = [stock(name, strength) for strength in strengths]
    call = job(name, plan=plan)
    plain = latents(host, call.prompt())
    before = status(host, call.worker_group)["counts"]
    for strength, expected in zip(strengths, right, strict=True):
        assert relative_error(latents(host, call.prompt(adapted(name, strength))), expected) <= STOCK_TOLERANCE
    assert torch.equal(latents(host, call.prompt()), plain)
    counts = status(host, call.worker_group)["counts"]
    assert counts["load"] == before["load"]
    assert counts["patch"] == before["patch"] + 3
    assert counts["call"] == before["call"] + 3 * call.steps, "a result of the host's cache"


def test_a_group_that_died_is_given_the_lora_again(host: ComfyHost, files: Path, stock: Callable) -> None:
    right, call = stock("sd3.5", 0.8), job("sd3.5")
    latents(host, call.prompt(adapted("sd3.5")))
    (pid,) = ranks(host, call.worker_group)
    rank = psutil.Process(pid)
    ending = [rank, rank.parent()]  # torchrun's agent
    rank.kill()
    psutil.wait_procs(ending, timeout=30)
    sampled = latents(host, replace(call, steps=call.steps).prompt(adapted("sd3.5")))
    assert relative_error(sampled, right) <= STOCK_TOLERANCE
