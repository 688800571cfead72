"""Prompts through ComfyUI's API queue: the demo workflow, the same latents under every plan, progress, cancel."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from demo.host import REPOSITORY, ComfyHost
from demo.workflow import api_prompt
from tests.support.host.graphs import Job, latents, ranks, relative_error, status
from tests.support.host.shape_checker import judge
from tests.support.tiers import slow_but

Denoise = Callable[[torch.Tensor, torch.Tensor, bool], torch.Tensor]

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
ONE_RANK = {"cfg": 1, "ulysses": 1}
PLANS = {
    "cfg 2 x ulysses 2": {"cfg": 2, "ulysses": 2},
    "ulysses 2": {"cfg": 1, "ulysses": 2},
    "cfg 2": {"cfg": 2, "ulysses": 1},
}
PIXART, SIGMA = "tiny-pixart-alpha.safetensors", "tiny-pixart-sigma.safetensors"
JOB = partial(Job, group=None)
SQUARE = {
    "demo": JOB("shapes-dit", "red heart", width=64, height=64, seed=11),
    "dit": JOB("tiny-dit", "3", seed=12),
    "pixart-alpha": JOB(PIXART, "text.safetensors", "other-text.safetensors", seed=13),
    "pixart-sigma": JOB(SIGMA, "text.safetensors", "other-text.safetensors", seed=14),
}
OTHER = {
    "demo, 3 images of 64x96": JOB("shapes-dit", "blue ring", width=64, height=96, batch=3, seed=21),
    "dit, 3 images of 144x80": JOB("tiny-dit", "9", width=144, height=80, batch=3, seed=22),
    "pixart, 2 images of 448x576": JOB(
        PIXART, "text.safetensors", "other-text.safetensors", width=448, height=576, batch=2, seed=23
    ),
    "pixart, texts of unequal length": JOB(SIGMA, "text.safetensors", "short-text.safetensors", seed=24),
}
JOBS = SQUARE | OTHER
# Each plan on a model and each job under a plan; the engine's own tests have every family under every plan.
QUICK = (
    "cfg 2 x ulysses 2 | demo",
    "cfg 2 x ulysses 2 | pixart, texts of unequal length",
    "ulysses 2 | dit",
    "ulysses 2 | pixart-sigma",
    "ulysses 2 | demo, 3 images of 64x96",
    "cfg 2 | pixart-alpha",
    "cfg 2 | dit, 3 images of 144x80",
    "cfg 2 | pixart, 2 images of 448x576",
)


@pytest.fixture(scope="module")
def on_one_rank(host: ComfyHost, models: Path) -> dict[str, torch.Tensor]:
    """The latents of every job under a plan of one rank."""
    there = {name: job for name, job in JOBS.items() if (models / "models" / "diffusers" / job.name).is_dir()}
    return {name: latents(host, job.under(ONE_RANK).prompt()) for name, job in there.items()}


@pytest.mark.parametrize("name", SQUARE)
def test_one_rank_gives_the_latents_of_plain_diffusers(
    name: str, on_one_rank: dict[str, torch.Tensor], models: Path
) -> None:
    assert name in set(on_one_rank), "demo/shapes-dit is missing; demo/train.py makes it"
    assert relative_error(on_one_rank[name], REFERENCES[name](SQUARE[name], models)) <= TOLERANCE


@pytest.mark.parametrize(
    ("plan", "name"), slow_but(QUICK, {f"{plan} | {name}": (plan, name) for plan in PLANS for name in JOBS})
)
def test_every_plan_gives_the_latents_of_one_rank(
    plan: str, name: str, host: ComfyHost, on_one_rank: dict[str, torch.Tensor]
) -> None:
    assert name in set(on_one_rank), "demo/shapes-dit is missing; demo/train.py makes it"
    job = JOBS[name].under(PLANS[plan])
    result = latents(host, job.prompt())
    assert PLANS[plan].items() <= status(host, job.worker_group)["plan"].items()
    assert len(ranks(host, job.worker_group)) >= PLANS[plan]["cfg"] * PLANS[plan]["ulysses"], "or it runs on a part"
    assert relative_error(result, on_one_rank[name]) <= TOLERANCE


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


def test_images_of_a_batch_and_of_other_classes_differ(host: ComfyHost) -> None:
    """Guards the equalities above: latents that depended on nothing would pass them."""
    images = latents(host, Job("tiny-dit", "3", batch=3, seed=12).prompt())
    assert relative_error(images[0], images[1]) > 0.1
    assert relative_error(images[1], images[2]) > 0.1
    assert relative_error(latents(host, Job("tiny-dit", "8", batch=3, seed=12).prompt()), images) > 1e-3


def test_a_class_by_number_by_name_and_by_any_of_its_names_is_the_same(host: ComfyHost) -> None:
    by_number = latents(host, Job("tiny-dit", "2", seed=31).prompt())
    for label in ("great white shark", " Man-eater ", "Carcharodon carcharias"):
        assert torch.equal(latents(host, Job("tiny-dit", label, seed=31).prompt()), by_number), label


def test_a_folder_under_its_published_class_name_loads(host: ComfyHost, models: Path) -> None:
    """facebook/DiT-XL-2-256 names diffusers' old class in transformer/config.json."""
    job = replace(SQUARE["dit"], seed=41)
    folder = models / "models" / "diffusers" / f"{job.name}-published"
    shutil.copytree(models / "models" / "diffusers" / job.name, folder)
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "_class_name": "Transformer2DModel"}))
    assert torch.equal(latents(host, replace(job, model=folder.name).prompt()), latents(host, job.prompt()))


def test_every_step_reports_progress_and_a_preview(host: ComfyHost) -> None:
    events = []
    host.run(Job("tiny-dit", steps=7).prompt(), on_event=events.append)
    steps = [(event["data"]["value"], event["data"]["max"]) for event in events if event["type"] == "progress"]
    assert steps == [(step, 7) for step in range(1, 8)]
    previews = [event["bytes"] for event in events if event["type"] == "preview"]
    assert len(previews) >= 7
    assert min(previews) > 200, "too short for a picture"


def test_cancel_ends_a_long_run_and_the_same_ranks_run_the_next(host: ComfyHost) -> None:
    latents(host, Job("tiny-dit").prompt())
    before = ranks(host)
    prompt_id = host.queue(Job("tiny-dit", steps=2000).prompt())
    cancelled = []

    def cancel(event: dict) -> None:
        if event["type"] == "progress" and not cancelled:
            cancelled.append(time.monotonic())
            host.interrupt(prompt_id)

    entry = host.wait(prompt_id, on_event=cancel)
    took = time.monotonic() - cancelled[0]
    assert entry["status"]["completed"] is False
    assert "execution_interrupted" in [kind for kind, _ in entry["status"]["messages"]]
    assert took < 5
    assert latents(host, Job("tiny-dit").prompt()).isfinite().all()
    assert ranks(host) == before


def simple_sigmas(table: torch.Tensor, steps: int) -> torch.Tensor:
    """ComfyUI's 'simple' schedule: equally spaced entries of a model's table of sigmas, then 0."""
    return torch.cat([table[[-(1 + int(step * len(table) / steps)) for step in range(steps)]], torch.zeros(1)])


@torch.inference_mode()
def euler(denoise: Denoise, x: torch.Tensor, sigmas: torch.Tensor, cfg: float) -> torch.Tensor:
    """The Euler sampler with classifier-free guidance; denoise: (x, sigma, wanted or not) to the clean latents."""
    for sigma, following in zip(sigmas, sigmas[1:], strict=False):
        wanted, unwanted = denoise(x, sigma, True), denoise(x, sigma, False)
        x = x + (x - (unwanted + cfg * (wanted - unwanted))) / sigma * (following - sigma)
    return x


def linear_beta_sigmas() -> torch.Tensor:
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 2e-2, 1000, dtype=torch.float64), 0)
    return ((1 - alphas) / alphas).sqrt().float()


def epsilon_sample(job: Job, predict: Denoise, channels: int) -> torch.Tensor:
    """predict: (scaled latents, timestep (1), wanted or not) to the model's sample; its first channels are epsilon."""
    table = linear_beta_sigmas()
    sigmas = simple_sigmas(table, job.steps)

    def denoise(x: torch.Tensor, sigma: torch.Tensor, wanted: bool) -> torch.Tensor:
        timestep = (table - sigma).abs().argmin().float()[None]
        return x - sigma * predict(x / (sigma**2 + 1).sqrt(), timestep, wanted)[:, :channels]

    noise = torch.randn(1, channels, job.height // 8, job.width // 8, generator=torch.manual_seed(job.seed))
    return euler(denoise, noise * (sigmas[0] ** 2 + 1).sqrt(), sigmas, job.cfg)


def demo_reference(job: Job, base: Path) -> torch.Tensor:
    folder = base / "models" / "diffusers" / job.name
    model = diffusers.DiTTransformer2DModel.from_pretrained(folder / "transformer", torch_dtype=torch.float32).eval()
    names = json.loads((folder / "model_index.json").read_text())["id2label"]
    (asked,) = [int(index) for index, name in names.items() if name == job.positive]

    def denoise(x: torch.Tensor, sigma: torch.Tensor, wanted: bool) -> torch.Tensor:
        label = torch.tensor([asked if wanted else len(names)])
        return x - sigma * model(x, timestep=sigma[None] * 1000, class_labels=label).sample

    sigmas = simple_sigmas(torch.arange(1, 1001) / 1000, job.steps)
    noise = torch.randn(1, 3, job.height, job.width, generator=torch.manual_seed(job.seed))
    return euler(denoise, noise * sigmas[0], sigmas, job.cfg)


def dit_reference(job: Job, base: Path) -> torch.Tensor:
    model = diffusers.DiTTransformer2DModel.from_pretrained(base / "models/diffusers" / job.name / "transformer")
    null_label = model.config.num_embeds_ada_norm

    def predict(x: torch.Tensor, timestep: torch.Tensor, wanted: bool) -> torch.Tensor:
        label = torch.tensor([int(job.positive) if wanted else null_label])
        return model.eval()(x, timestep=timestep, class_labels=label).sample

    return epsilon_sample(job, predict, 4) / 0.18215  # the scale of Stable Diffusion's VAE


def pixart_reference(job: Job, base: Path) -> torch.Tensor:
    model = diffusers.PixArtTransformer2DModel.from_pretrained(base / "models/diffusers" / job.name / "transformer")
    texts = {True: job.positive, False: job.negative}
    sizes = {
        "resolution": torch.tensor([[float(job.height), float(job.width)]]),
        "aspect_ratio": torch.tensor([[job.height / job.width]]),
    }

    def predict(x: torch.Tensor, timestep: torch.Tensor, wanted: bool) -> torch.Tensor:
        text = load_file(base / "input" / texts[wanted])["conditioning"]
        return model.eval()(x, encoder_hidden_states=text, timestep=timestep, added_cond_kwargs=sizes).sample

    scale = {"tiny-pixart-alpha": 0.18215, "tiny-pixart-sigma": 0.13025}[job.name]  # Stable Diffusion's VAE, SDXL's
    return epsilon_sample(job, predict, 4) / scale


REFERENCES = {
    "demo": demo_reference,
    "dit": dit_reference,
    "pixart-alpha": pixart_reference,
    "pixart-sigma": pixart_reference,
}
