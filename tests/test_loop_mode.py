"""Loop mode: the Parallel Sampler, and the stock samplers that the worker group may serve whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import diffusers
import pytest
import torch

from demo.host import ComfyHost
from tests.graphs import Job, latents, relative_error, status
from tests.loop_cases import EXPECTED, by_pipeline, scheduler_in

TOLERANCE = 1e-5
TEXTS = ("text.safetensors", "other-text.safetensors")
ONE_RANK = {"cfg": 1}
STOCK = {
    "demo": Job("shapes-dit", "red heart", width=64, height=64, seed=11),
    "dit": Job("tiny-dit", "3", seed=12, batch=3),
    "pixart, texts of unequal length": Job("tiny-pixart-alpha", TEXTS[0], "short-text.safetensors", seed=13),
    "sd3": Job("tiny-sd3", *TEXTS, seed=14),
    "flux": Job("tiny-flux", *TEXTS, seed=15, cfg=1.0),
}


def served(host: ComfyHost, job: Job) -> tuple[torch.Tensor, dict[str, int]]:
    """The latents, and how many requests of each kind they took."""
    job = job.under(job.plan or ONE_RANK)
    latents(host, job.prompt())
    before = status(host)["counts"]
    result = latents(host, replace(job, seed=job.seed + 1).prompt())
    after = status(host)["counts"]
    return result, {kind: after[kind] - before[kind] for kind in after}


@pytest.mark.parametrize("name", STOCK)
def test_a_stock_euler_is_served_whole_and_gives_the_same_latents(name: str, host: ComfyHost) -> None:
    job = STOCK[name].under(ONE_RANK)
    in_steps, requests = served(host, job)
    assert requests["sample"] == 0 and requests["forward"] >= job.steps
    in_a_loop, requests = served(host, replace(job, loop_mode=True))
    assert (requests["sample"], requests["forward"]) == (1, 0)
    assert relative_error(in_a_loop, in_steps) <= TOLERANCE


@pytest.mark.parametrize(
    "job",
    [
        replace(STOCK["demo"], sampler="dpmpp_2m"),
        replace(STOCK["demo"], mask=True),
        replace(STOCK["dit"], denoise=0.6, sampler="euler_ancestral"),
    ],
    ids=["another sampler", "a mask", "an ancestral sampler"],
)
def test_other_stock_calls_stay_in_step_mode(job: Job, host: ComfyHost) -> None:
    _, requests = served(host, replace(job, loop_mode=True))
    assert requests["sample"] == 0 and requests["forward"] > 0


def test_a_stock_euler_of_the_last_steps_is_the_same(host: ComfyHost) -> None:
    job = replace(STOCK["sd3"], denoise=0.5, plan=ONE_RANK)
    in_a_loop, requests = served(host, replace(job, loop_mode=True))
    assert requests["sample"] == 1
    assert relative_error(in_a_loop, served(host, job)[0]) <= TOLERANCE


OWN = {
    "demo": replace(STOCK["demo"], scheduler="model's own"),
    "dit": Job("tiny-dit", "3", seed=12, batch=3, scheduler="model's own"),
    "pixart": Job("tiny-pixart-alpha", *TEXTS, seed=13, scheduler="model's own"),
    "pixart, texts of unequal length": replace(STOCK["pixart, texts of unequal length"], scheduler="model's own"),
    "sd3": Job("tiny-sd3", *TEXTS, seed=14, scheduler="model's own"),
    "flux": Job("tiny-flux", *TEXTS, seed=15, cfg=1.0, scheduler="model's own"),
    "flux with a negative": Job("tiny-flux", *TEXTS, seed=16, scheduler="model's own"),
}
OTHERS = {
    "DPM++ 2M Karras": (
        OWN["dit"],
        diffusers.DPMSolverMultistepScheduler,
        {"use_karras_sigmas": True, "algorithm_type": "dpmsolver++"},
    ),
    "UniPC": (OWN["pixart"], diffusers.UniPCMultistepScheduler, {}),
    "Heun": (OWN["pixart"], diffusers.HeunDiscreteScheduler, {}),
    "Heun flow": (OWN["sd3"], diffusers.FlowMatchHeunDiscreteScheduler, {}),
}
EXACT_PLANS = [
    {"ulysses": 2},
    {"ring": 2},
    {"cfg": 2},
    {"dp": 2},
    {"cfg": 2, "ulysses": 2},
    {"dp": 2, "ring": 2},
]
PIPEFUSION_PLANS = [
    {"pipefusion": 2, "patches": 3},
    {"pipefusion": 2, "patches": 2, "sync_steps": 2},
    {"pipefusion": 2, "patches": 3, "cfg": 2},
    {"pipefusion": 2, "patches": 3, "ulysses": 2},
    {"pipefusion": 2, "patches": 2, "dp": 2},
]


@pytest.fixture(scope="module")
def on_one_rank(host: ComfyHost) -> dict[str, torch.Tensor]:
    return {name: latents(host, job.under(ONE_RANK).prompt()) for name, job in OWN.items()}


@pytest.mark.parametrize("name", OWN)
def test_the_parallel_sampler_on_one_rank_is_diffusers_loop(
    name: str, on_one_rank: dict[str, torch.Tensor], models: Path
) -> None:
    job = OWN[name]
    wanted = EXPECTED[job.model].sample(job, models, scheduler_in(job, models))
    assert relative_error(on_one_rank[name], wanted) <= TOLERANCE


@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_the_parallel_sampler_on_one_rank_is_diffusers_pipeline(
    name: str, on_one_rank: dict[str, torch.Tensor], models: Path
) -> None:
    assert relative_error(on_one_rank[name], by_pipeline(OWN[name], models)) <= TOLERANCE


@pytest.mark.parametrize("name", OTHERS)
def test_another_scheduler_is_diffusers_with_the_folders_settings(name: str, host: ComfyHost, models: Path) -> None:
    job, scheduler_class, options = OTHERS[name]
    wanted = EXPECTED[job.model].sample(job, models, scheduler_in(job, models, scheduler_class, **options))
    result = latents(host, replace(job, scheduler=name, plan=ONE_RANK).prompt())
    assert relative_error(result, wanted) <= TOLERANCE


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("plan", EXACT_PLANS, ids=str)
def test_every_exact_plan_gives_the_latents_of_one_rank(
    plan: dict, name: str, host: ComfyHost, on_one_rank: dict[str, torch.Tensor]
) -> None:
    assert relative_error(latents(host, OWN[name].under(plan).prompt()), on_one_rank[name]) <= TOLERANCE


def test_tensor_parallel_gives_the_latents_of_one_rank(host: ComfyHost, on_one_rank: dict[str, torch.Tensor]) -> None:
    assert relative_error(latents(host, OWN["flux"].under({"tp": 2}).prompt()), on_one_rank["flux"]) <= TOLERANCE


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("plan", PIPEFUSION_PLANS, ids=str)
def test_pipefusion_in_the_graph_is_its_serial_oracle(plan: dict, name: str, host: ComfyHost, models: Path) -> None:
    job = OWN[name].under(plan)
    wanted = EXPECTED[job.model].sample(job, models, scheduler_in(job, models))
    assert relative_error(latents(host, job.prompt()), wanted) <= TOLERANCE
