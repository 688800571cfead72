"""Every stock sampler and schedule: with Parallelize Model it gives the latents that it gives without. The census has
the nodes that sample."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.host.graphs import GROUPS_BY_SIZE, Job, ask_error, latents, relative_error, runs
from tests.support.host.stock_prompts import prompt, write_cases

TOLERANCE = 1e-4
NAME = "sd3"
EVEN = (1, 16, 12, 16)  # a latent that falls into patches
STEPS_OF_PIPEFUSION = 6


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> None:
    """The model, and a negative text that is shorter than the positive one."""
    write_cases(comfyui, models, [NAME])
    text = load_file(models / "input" / f"{NAME} negative.safetensors")
    text["conditioning"] = text["conditioning"][:, :-3].clone()
    save_file(text, models / "input" / f"{NAME} short.safetensors")


def sampled(host: ComfyHost, plan: dict[str, int] | None, sampler: str, scheduler: str, steps: int = 3) -> torch.Tensor:
    group = GROUPS_BY_SIZE[(plan or {}).get("pipefusion", 1)]
    asked = prompt(NAME, plan, group=group, negative="short", steps=steps, size=EVEN)
    (inputs,) = (node["inputs"] for node in asked.values() if node["class_type"] == "KSampler")
    inputs.update(sampler_name=sampler, scheduler=scheduler)
    return latents(host, asked)


def test_every_sampler_and_scheduler_of_the_host_gives_what_the_stock_loader_gives(
    host: ComfyHost, files: None
) -> None:
    inputs = host.object_info()["KSampler"]["input"]["required"]
    samplers, schedulers = inputs["sampler_name"][0], inputs["scheduler"][0]
    assert len(samplers) > 30 and len(schedulers) > 5
    choices = [(sampler, "simple") for sampler in samplers] + [("dpmpp_2m", scheduler) for scheduler in schedulers]
    # Each is loaded once.
    ours, stock = ({choice: sampled(host, plan, *choice) for choice in choices} for plan in ({"cfg": 1}, None))
    errors = {choice: relative_error(ours[choice], stock[choice]) for choice in choices}
    assert not {choice: error for choice, error in errors.items() if not error <= TOLERANCE}


@pytest.mark.parametrize("sampler", ["heun", "dpmpp_2m", "euler_ancestral"])
def test_pipefusion_under_a_stock_sampler_depends_on_the_patches_alone(
    sampler: str, host: ComfyHost, groups_by_size: None, files: None
) -> None:
    """Not on the stages. cond and uncond differ in length, so each step has two forwards. A step goes whole if it is
    one of the first."""

    def draw(plan: dict[str, int] | None) -> torch.Tensor:
        return sampled(host, plan, sampler, "simple", STEPS_OF_PIPEFUSION)

    patches = {"patches": 3, "sync_steps": 2}
    stock, serial, staged = draw(None), draw(patches), draw({"pipefusion": 2, **patches})
    assert relative_error(staged, serial) <= TOLERANCE
    assert TOLERANCE < relative_error(serial, stock) < 0.5
    assert relative_error(draw({"pipefusion": 2, "patches": 3, "sync_steps": 100}), stock) <= TOLERANCE


def test_two_runs_are_compared_by_their_latents(host: ComfyHost) -> None:
    job = Job("shapes-dit", "red heart", width=64, height=64, seed=86, steps=6)
    found = [latents(host, job.under(plan).prompt()) for plan in ({"ulysses": 2}, {"pipefusion": 2, "patches": 2})]
    lossy, exact = (each["id"] for each in runs(host)[:2])
    error = float((found[1] - found[0]).norm() / found[0].norm())
    assert ask_error(host, lossy, exact) == pytest.approx(error, rel=1e-3) and error > 1e-3
    assert ask_error(host, exact, exact) == 0.0 and ask_error(host, lossy, 0) is None
