"""*Load DiT*: a stock MODEL of a class-conditional DiT. With *Parallelize Model* behind it, the ranks draw the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from demo.host import ComfyHost, PromptError
from tests.support.cases.loop_cases import EXPECTED, scheduler_in
from tests.support.host.graphs import GROUPS_BY_SIZE, Graph, Job, Link, conditioning, latents, relative_error, runs

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE, DEMO_NAME = 1e-5, "demo: coloured shapes (64×64)"
JOBS = {
    "tiny-dit": Job("tiny-dit", "goldfish", batch=2, seed=21),
    "shapes-dit": Job("shapes-dit", "red heart", width=64, height=64, seed=22),
}
PLANS = [{"ulysses": 2}, {"cfg": 2}]


def prompt(job: Job) -> dict:
    """Its graph from Load DiT. Under a plan, Parallelize Model is behind the loader."""
    graph = Graph()
    model: Link = graph.add("ParallelDiT_LoadDiT", model_name=job.model)
    if job.plan:
        model = graph.add("ParallelDiT_Parallelize", model=model, mode="manual", group=GROUPS_BY_SIZE[2], **job.plan)
    kind, how = ("ParallelDiT_Sampler", {"scheduler": job.scheduler}) if job.scheduler else ("KSampler", {})
    how = how or {"sampler_name": "euler", "scheduler": "simple"}
    latent = graph.add("EmptyLatentImage", width=job.width, height=job.height, batch_size=job.batch)
    positive, negative = (conditioning(graph, model, label) for label in (job.positive, job.negative))
    sampled = graph.add(
        kind, model=model, positive=positive, negative=negative, latent_image=latent, seed=job.seed, steps=job.steps,
        cfg=job.cfg, denoise=1.0, **how,
    )  # fmt: skip
    graph.add("SaveLatent", samples=sampled, filename_prefix="dit")
    return graph.prompt


@pytest.fixture(scope="module")
def stock(host: ComfyHost) -> Callable[[str], torch.Tensor]:
    return cache(lambda name: latents(host, prompt(JOBS[name])))


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", JOBS)
def test_the_ranks_draw_what_stock_draws(
    name: str, plan: dict[str, int], host: ComfyHost, stock: Callable[[str], torch.Tensor]
) -> None:
    found = latents(host, prompt(JOBS[name].under(plan)))
    run = runs(host, GROUPS_BY_SIZE[2])[0]
    assert not run["is_stock"] and run["reason"] == "", host.log.read_text()
    assert relative_error(found, stock(name)) <= TOLERANCE


@pytest.mark.parametrize("name", JOBS)
def test_pipefusion_is_its_serial_oracle(name: str, host: ComfyHost, models: Path) -> None:
    """By the scheduler that the folder names."""
    job = JOBS[name].under({"pipefusion": 2, "patches": 2})
    job = Job(**{**vars(job), "scheduler": "model's own"})
    wanted = EXPECTED[job.model].sample(job, models, scheduler_in(job, models))
    assert relative_error(latents(host, prompt(job)), wanted) <= TOLERANCE


@pytest.fixture(scope="module")
def of_flux(models: Path) -> Iterator[str]:
    """The folder of another class."""
    folder = models / "models" / "diffusers" / "folder-of-flux"
    (folder / "transformer").mkdir(parents=True)
    (folder / "model_index.json").write_text("{}")
    (folder / "transformer" / "config.json").write_text('{"_class_name": "FluxTransformer2DModel"}')
    yield folder.name
    shutil.rmtree(folder)


def test_only_class_conditional_dits_are_offered(host: ComfyHost, of_flux: str) -> None:
    offered = json.dumps(host.object_info()["ParallelDiT_LoadDiT"]["input"]["required"], ensure_ascii=False)
    assert all(f'"{name}"' in offered for name in ("tiny-dit", "shapes-dit", DEMO_NAME))
    assert of_flux not in offered


@pytest.mark.usefixtures("of_flux")
@pytest.mark.parametrize(("name", "words"), [("no-such", "Put it there"), ("folder-of-flux", "FluxTransformer2DModel")])
def test_another_name_is_refused_with_what_to_do(name: str, words: str, host: ComfyHost) -> None:
    with pytest.raises(PromptError, match=words):
        host.run(prompt(Job(name, seed=23)))


def test_a_folder_without_weights_says_so(host: ComfyHost, models: Path) -> None:
    folder = models / "models" / "diffusers" / "tiny-dit-empty"
    shutil.copytree(folder.with_name("tiny-dit"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    try:
        with pytest.raises(PromptError, match="holds no safetensors file"):
            host.run(prompt(Job(folder.name, seed=23)))
    finally:
        shutil.rmtree(folder)
