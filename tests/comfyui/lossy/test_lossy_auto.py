"""Auto on a slow link: it may use a plan that changes the image only if the person allows it, and it says so. Such a
plan is compared with the exact one under a stock sampler."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from demo.host import ComfyHost
from tests.conftest import DEMO_MODEL, EXTRA_ARGS, HOST_ENV, NODE_PACKS
from tests.support.files.deeper import deepen_folder
from tests.support.host.graphs import Job, latents, runs, status
from tests.support.host.quick_machine import slow_machine

DEEP = "deep-shapes"
# A sampler that draws noise at each step: the exact run has to draw the same.
JOB = Job(DEEP, "red heart", width=128, height=128, steps=6, cfg=1.0, sampler="euler_ancestral", seed=70)
DRIFT = 0.2  # relative; PipeFusion's on this model with one sync step is a few per cent


@pytest.fixture(scope="module")
def slow_host(comfyui: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyHost]:
    """A ComfyUI that believes its two ranks to have a slow link, with the demo model of more blocks: PipeFusion sends
    once for a stage, and other plans once for a block."""
    base = tmp_path_factory.mktemp("slow")
    (base / "models" / "diffusers").mkdir(parents=True)
    deepen_folder(DEMO_MODEL, base / "models" / "diffusers" / DEEP, 16)
    (base / "input").symlink_to(models / "input", target_is_directory=True)
    for name in NODE_PACKS:
        shutil.copytree(models / "custom_nodes" / name, base / "custom_nodes" / name)
    env = {**HOST_ENV, "PARALLELDIT_MEASURED": slow_machine()}
    with ComfyHost(comfyui, base, extra_args=EXTRA_ARGS, env=env) as host:
        yield host


def asked(job: Job, **values: Any) -> dict[str, Any]:
    """The job's prompt with these values of the plan's inputs."""
    prompt = job.prompt()
    (plan,) = (each["inputs"] for each in prompt.values() if "mode" in each["inputs"])
    plan.update(values)
    return prompt


def is_lossy(run: Mapping[str, Any]) -> bool:
    (plan,) = run["plans"]
    return plan["pipefusion"] > 1 and plan["patches"] > 1


def apart(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def test_a_lossy_plan_is_chosen_only_where_it_is_allowed_and_compared_with_the_exact_one(slow_host: ComfyHost) -> None:
    exact = latents(slow_host, JOB.prompt())
    assert not is_lossy(runs(slow_host)[0]), "auto is exact"
    assert torch.equal(latents(slow_host, asked(JOB, mode="auto", compare="once")), exact)
    assert not is_lossy(runs(slow_host)[0]), "so it is with a comparison"
    assert runs(slow_host)[0]["comparison"] == "Nothing to compare: this setting is exact."

    found = latents(slow_host, asked(JOB, mode="auto", lossy="allowed"))
    (run, *_) = runs(slow_host)
    assert is_lossy(run), status(slow_host)["remarks"]
    assert not run["comparison"]
    assert "changes the image a little. The exact plan is " in run["reason"]
    assert 0 < apart(found, exact) < DRIFT

    again = latents(slow_host, asked(JOB, mode="auto", lossy="allowed", compare="once"))
    assert torch.equal(again, found), "what goes on is the setting that was asked for"
    reference, run, *_ = runs(slow_host)
    assert is_lossy(run) and not is_lossy(reference) and reference["reason"] == "The exact run of a comparison."
    text = run["comparison"]
    assert f"the latents differ by {apart(found, exact):.2%}" in text, "the second run draws the same noise"
    assert f"({run['plan']})" in text and f"exact ({reference['plan']})" in text

    before = runs(slow_host)[0]["id"]
    latents(slow_host, asked(replace(JOB, seed=71, positive="blue star"), mode="auto", lossy="allowed", compare="once"))
    (run, *_) = runs(slow_host)
    assert (run["id"], run["comparison"]) == (before + 1, f"{text} (Found on an earlier prompt.)")


def test_a_manual_plan_is_compared_too_and_leaves_the_number_of_patches_to_auto(slow_host: ComfyHost) -> None:
    job = replace(JOB, width=64, height=64, steps=5)  # no other test compares so many
    exact = latents(slow_host, asked(job, mode="manual", ulysses=2))
    found = latents(slow_host, asked(job, mode="manual", pipefusion=2, compare="once"))
    reference, run, *_ = runs(slow_host)
    (plan,) = run["plans"]
    assert plan["pipefusion"] == 2 and plan["patches"] in (2, 4, 8)
    assert reference["plans"][0]["ulysses"] == 2
    assert f"the latents differ by {apart(found, exact):.2%}" in run["comparison"]
