"""The Parallel Sampler, whose whole loop runs in the ranks."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import diffusers
import pytest
import torch

from demo.host import ComfyHost
from tests.support.cases.loop_cases import EXPECTED, scheduler_in
from tests.support.host.graphs import Job, cancel, latents, ranks, relative_error, write_latent

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
TEXTS = ("text.safetensors", "other-text.safetensors")
ONE_RANK = {"cfg": 1}
JOB = partial(Job, group=None)
OWN = {
    "demo": JOB("shapes-dit", "red heart", width=64, height=64, seed=11, scheduler="model's own"),
    "dit": JOB("tiny-dit", "3", seed=12, batch=3, scheduler="model's own"),
    "sd3": JOB("tiny-sd3.safetensors", *TEXTS, seed=14, scheduler="model's own"),
    "sd3, texts of unequal length": JOB(
        "tiny-sd3.safetensors", TEXTS[0], "short-text.safetensors", seed=13, scheduler="model's own"
    ),
    "flux": JOB("tiny-flux.safetensors", *TEXTS, seed=15, cfg=1.0, scheduler="model's own"),
    "flux with a negative": JOB("tiny-flux.safetensors", *TEXTS, seed=16, scheduler="model's own"),
}
OTHERS = {
    "DPM++ 2M Karras": (
        OWN["dit"],
        diffusers.DPMSolverMultistepScheduler,
        {"use_karras_sigmas": True, "algorithm_type": "dpmsolver++"},
    ),
    "UniPC": (OWN["dit"], diffusers.UniPCMultistepScheduler, {}),
    "Heun": (OWN["dit"], diffusers.HeunDiscreteScheduler, {}),
    "Heun flow": (OWN["sd3"], diffusers.FlowMatchHeunDiscreteScheduler, {}),
}
# Each plan on a model and each model under a plan; the engine's own tests have all of them.
EXACT = [
    ({"ulysses": 2}, "sd3, texts of unequal length"),
    ({"ulysses": 2}, "flux"),
    ({"ring": 2}, "sd3"),
    ({"cfg": 2}, "flux with a negative"),
    ({"dp": 2}, "dit"),
    ({"cfg": 2, "ulysses": 2}, "demo"),
    ({"dp": 2, "ring": 2}, "dit"),
]
PATCHES, SYNCHRONOUS = {"pipefusion": 2, "patches": 3}, {"pipefusion": 2, "patches": 2, "sync_steps": 2}
PIPEFUSION = [
    (PATCHES, "sd3, texts of unequal length"),
    (SYNCHRONOUS, "demo"),
    ({**PATCHES, "cfg": 2}, "sd3"),
    ({**PATCHES, "ulysses": 2}, "flux"),
    ({"pipefusion": 2, "patches": 2, "dp": 2}, "dit"),
]
# Each scheduler, of which one has a history and one draws noise, on one rank, in ranks that share the tokens or the
# guidance, and in stages with and without stale steps.
AFTER_ANOTHER = [
    ("DPM++ 2M", ONE_RANK),
    ("DPM++ 2M", {"ulysses": 2}),
    ("Euler ancestral", {"cfg": 2}),
    ("DPM++ 2M", PATCHES),
    ("Euler ancestral", SYNCHRONOUS),
    ("Euler ancestral", {**PATCHES, "cfg": 2}),
]
PARTS = ("sd3", "dit")  # a model of each kind of schedule: of flow matching, and of diffusion


@pytest.mark.parametrize(("plan", "name"), [*((ONE_RANK, name) for name in OWN), *EXACT, *PIPEFUSION], ids=str)
def test_every_plan_gives_the_latents_of_diffusers_loop_or_pipefusions_of_its_serial_oracle(
    plan: dict, name: str, host: ComfyHost, models: Path
) -> None:
    job = OWN[name].under(plan)
    wanted = EXPECTED[job.name].sample(job, models, scheduler_in(job, models))
    assert relative_error(latents(host, job.prompt()), wanted) <= TOLERANCE


@pytest.mark.parametrize("name", OTHERS)
def test_another_scheduler_is_diffusers_with_the_models_settings(name: str, host: ComfyHost, models: Path) -> None:
    job, scheduler_class, options = OTHERS[name]
    wanted = EXPECTED[job.name].sample(job, models, scheduler_in(job, models, scheduler_class, **options))
    result = latents(host, replace(job, scheduler=name, plan=ONE_RANK).prompt())
    assert relative_error(result, wanted) <= TOLERANCE


def again(job: Job) -> Job:
    """The same job, but for the host's cache, which goes by the inputs."""
    return replace(job, denoise=0.99999)


LONG = JOB("tiny-dit", steps=4000, scheduler="Euler", seed=50)
SHORT = replace(LONG, steps=4)
STOCK = replace(LONG, scheduler=None)  # a KSampler, whose steps ComfyUI makes
CANCELLABLE = [
    *((LONG, {"ulysses": 2}), (LONG, {"pipefusion": 2, "patches": 2}), (STOCK, {"cfg": 2})),
    (LONG, {"pipefusion": 2, "patches": 3, "cfg": 2}),
]


@pytest.mark.parametrize(("long", "plan"), CANCELLABLE, ids=str)
def test_cancel_ends_a_job_on_all_ranks_and_the_next_one_is_as_if_alone(long: Job, plan: dict, host: ComfyHost) -> None:
    long = long.under(plan)
    short, group = replace(long, steps=SHORT.steps), long.worker_group
    alone = latents(host, short.prompt())
    before = ranks(host, group)
    took, ended = cancel(host, long.prompt()), time.monotonic()
    latents(host, replace(short, positive="4").prompt())
    assert took + time.monotonic() - ended < 10, "the job went on after it was cancelled"
    assert torch.equal(latents(host, again(short).prompt()), alone)
    assert ranks(host, group) == before


@pytest.mark.parametrize(("scheduler", "plan"), AFTER_ANOTHER, ids=str)
def test_a_job_after_another_is_bit_for_bit_the_job_alone(scheduler: str, plan: dict, host: ComfyHost) -> None:
    job = replace(SHORT, plan=plan, scheduler=scheduler, steps=6, seed=60)
    alone = latents(host, job.prompt())
    # Larger, of another class, a batch: whatever it left behind would be of the wrong shape, or show.
    other = latents(host, replace(job, seed=61, positive="7", width=192, batch=2).prompt())
    assert other.isfinite().all()
    assert torch.equal(latents(host, again(job).prompt()), alone)


@pytest.mark.parametrize("name", PARTS)
def test_a_mask_keeps_the_latent_and_less_denoise_stays_near_it(name: str, host: ComfyHost, models: Path) -> None:
    """The latent to begin from is what another run made. Both are the same under other plans."""
    job = replace(OWN[name], plan=ONE_RANK)
    base = latents(host, replace(job, seed=70).prompt())
    write_latent(models, "base", base)
    begun = replace(job, latent="base.latent", positive=job.negative, negative=job.positive, seed=71, steps=8)
    masked = latents(host, replace(begun, mask=True).prompt())
    half = masked.shape[-1] // 2
    assert relative_error(masked[..., :half], base[..., :half]) <= TOLERANCE
    assert relative_error(masked[..., half:], base[..., half:]) > 1e-2
    near, far = (latents(host, replace(begun, denoise=denoise).prompt()) for denoise in (0.25, 1.0))
    assert 1e-4 < relative_error(near, base) < relative_error(far, base)
    both = replace(job, denoise=0.5, mask=True, latent="base.latent", steps=5)
    alone = latents(host, both.prompt())
    for plan in ({"ulysses": 2}, {"pipefusion": 2, "patches": 3, "sync_steps": 10}):
        assert relative_error(latents(host, both.under(plan).prompt()), alone) <= TOLERANCE
