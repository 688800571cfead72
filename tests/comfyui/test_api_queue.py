"""Prompts through ComfyUI's API queue: the demo workflow, the same latents under every plan, progress, cancel."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from demo.host import REPOSITORY, ComfyHost
from demo.workflow import api_prompt
from tests.conftest import LINEAR_BETAS
from tests.support.cases.loop_cases import EXPECTED
from tests.support.host.graphs import Job, bypass, latents, ranks, relative_error, status
from tests.support.host.shape_checker import judge

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
ONE_RANK = {"cfg": 1, "ulysses": 1}
JOB = partial(Job, group=None)
JOBS = {
    "demo": JOB("shapes-dit", "red heart", width=64, height=64, seed=11),
    "dit": JOB("tiny-dit", "3", seed=12),
    "demo, 3 images of 64x96": JOB("shapes-dit", "blue ring", width=64, height=96, batch=3, seed=21),
    "dit, 3 images of 144x80": JOB("tiny-dit", "9", width=144, height=80, batch=3, seed=22),
}
# Each plan on a model and each job under a plan; the engine's own tests have every family under every plan.
CASES = [
    *((ONE_RANK, name) for name in JOBS),
    ({"cfg": 2, "ulysses": 2}, "demo"),
    ({"cfg": 1, "ulysses": 2}, "dit"),
    ({"cfg": 1, "ulysses": 2}, "demo, 3 images of 64x96"),
    ({"cfg": 2, "ulysses": 1}, "dit, 3 images of 144x80"),
]


@pytest.mark.parametrize(("plan", "name"), CASES, ids=str)
def test_every_plan_and_the_stock_model_give_the_latents_of_plain_diffusers(
    plan: dict[str, int], name: str, host: ComfyHost, models: Path
) -> None:
    job = JOBS[name].under(plan)
    right = stock_euler(job, models)
    assert relative_error(latents(host, job.prompt()), right) <= TOLERANCE
    assert plan.items() <= status(host, job.worker_group)["plan"].items()
    assert len(ranks(host, job.worker_group)) >= plan["cfg"] * plan["ulysses"], "or it runs on a part"
    assert relative_error(latents(host, bypass(job.prompt())), right) <= TOLERANCE


@pytest.mark.parametrize("template", ["demo", "pipefusion"])
def test_an_example_workflow_draws_what_it_asks_for(template: str, host: ComfyHost) -> None:
    workflow = json.loads((REPOSITORY / "example_workflows" / f"{template}.json").read_text())
    prompt = api_prompt(workflow, host.object_info())
    labels = [node["inputs"]["label"] for node in prompt.values() if node["class_type"] == "ParallelDiT_ClassLabel"]
    (asked,) = filter(None, labels)
    outputs = host.run(prompt)["outputs"]
    (image,) = [image for output in outputs.values() for image in output.get("images", [])]
    picture = Image.open(host.output_file(image))
    assert picture.format == "PNG"
    assert picture.size == (384, 384), "64×64, enlarged six times by the workflow"
    assert " ".join(judge(np.asarray(picture.convert("RGB")))) == asked


def test_a_class_by_number_by_name_and_by_any_of_its_names_is_the_same(host: ComfyHost) -> None:
    by_number = latents(host, Job("tiny-dit", "2", seed=31).prompt())
    for label in ("great white shark", " Man-eater ", "Carcharodon carcharias"):
        assert torch.equal(latents(host, Job("tiny-dit", label, seed=31).prompt()), by_number), label


def test_a_folder_under_its_published_class_name_loads(host: ComfyHost, models: Path) -> None:
    """facebook/DiT-XL-2-256 names diffusers' old class in transformer/config.json."""
    job = replace(JOBS["dit"], seed=41)
    folder = models / "models" / "diffusers" / f"{job.name}-published"
    shutil.copytree(models / "models" / "diffusers" / job.name, folder)
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "_class_name": "Transformer2DModel"}))
    assert torch.equal(latents(host, replace(job, model=folder.name).prompt()), latents(host, job.prompt()))


@pytest.mark.parametrize(("scheduler", "count", "least"), [(None, 7, 7), ("Euler", 30, 2)])
def test_steps_report_progress_and_previews(scheduler: str | None, count: int, least: int, host: ComfyHost) -> None:
    """At least so many of these steps. A loop in the ranks tells of some, where they follow fast."""
    events = []
    host.run(Job("tiny-dit", steps=count, scheduler=scheduler).prompt(), on_event=events.append)
    steps = [(event["data"]["value"], event["data"]["max"]) for event in events if event["type"] == "progress"]
    assert steps[-1] == (count, count) and len(steps) >= least
    previews = [event["bytes"] for event in events if event["type"] == "preview"]
    assert len(previews) >= (1 if scheduler else count) and min(previews) > 200, "too short for a picture"


def stock_euler(job: Job, base: Path) -> torch.Tensor:
    """ComfyUI's latents by its Euler sampler with guidance over its "simple" schedule, of diffusers' plain model and
    scheduler."""
    case = EXPECTED[job.name]
    # Equally spaced entries of the model's table.
    entries = [999 - step * 1000 // job.steps for step in range(job.steps)]
    if case.channels == 3:  # a flow's model
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(sigmas=[(entry + 1) / 1000 for entry in entries])
    else:
        scheduler = diffusers.EulerDiscreteScheduler.from_config(LINEAR_BETAS, timestep_spacing="leading")
        scheduler.set_timesteps(timesteps=entries)
    return case.sample(job, base, scheduler)
