"""What a scheduler's name and a model's config make, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import diffusers
import pytest
import torch

from parallel_backend.errors import PlanError, RequestError
from parallel_backend.sampling.schedulers import COGVIDEOX, FLOW, MODELS_OWN, build_scheduler, check_patchwise
from parallel_backend.sampling.stepper import Stepper
from tests.support.cases.scheduler_cases import (
    CONFIGS,
    NAMED,
    PATCHES,
    SHAPE,
    STEPS,
    build,
    model,
    randn,
    run,
    seeded,
)

pytestmark = pytest.mark.filterwarnings("ignore:__array")  # diffusers on NumPy 2


def test_swapping_keeps_the_models_schedule_as_diffusers_does() -> None:
    own = {**CONFIGS["diffusion"], "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
    swapped = diffusers.EulerDiscreteScheduler.from_config(diffusers.DDIMScheduler.from_config(own).config)
    built = build_scheduler("Euler", own)
    assert dict(built.config).items() >= {key: swapped.config[key] for key in own if key[0] != "_"}.items()
    assert torch.equal(built.sigmas, swapped.sigmas)


@pytest.mark.parametrize(
    ("config", "class_name"),
    [
        ({}, "DDIMScheduler"),
        ({"_class_name": "DPMSolverMultistepScheduler"}, "DPMSolverMultistepScheduler"),
        (CONFIGS[FLOW], "FlowMatchEulerDiscreteScheduler"),
        (CONFIGS[COGVIDEOX], "CogVideoXDPMScheduler"),
    ],
)
def test_the_models_own_scheduler_is_the_one_that_its_config_names(config: Mapping, class_name: str) -> None:
    assert type(build_scheduler(MODELS_OWN, config)).__name__ == class_name


def test_latents_are_not_clipped_by_a_class_that_the_model_did_not_come_with() -> None:
    solver = {"_class_name": "DPMSolverMultistepScheduler"}  # as PixArt's: no clip_sample, which DDIM takes for True
    assert build_scheduler("DDIM", solver).config.clip_sample is False
    assert build_scheduler("DDIM", {**solver, "clip_sample": True}).config.clip_sample is True


def test_a_learned_variance_is_not_asked_for() -> None:
    stepper = Stepper.prepare(build("DDPM", _class_name="DDPMScheduler", variance_type="learned_range"), STEPS)
    assert run(stepper, randn(1), model).isfinite().all()


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("Elba", {}, "no scheduler 'Elba'; there are model's own, DDIM"),
        (
            "Euler",
            CONFIGS[FLOW],
            r"'Euler' is for diffusion models, and this model's .* flow matching .*\n\nUse .*Euler flow",
        ),
        ("Euler", {"_class_name": "UniPCMultistepScheduler", "prediction_type": "flow_prediction"}, "flow matching"),
        ("UniPC flow", CONFIGS["diffusion"], r"'UniPC flow' is for flow matching models.*\n\n.* DPM\+\+ 2M"),
        ("DDIM", CONFIGS[FLOW], r"'DDIM' is for diffusion models.*flow matching.*\n\n.*Euler flow"),
        ("DDIM", CONFIGS[COGVIDEOX], r"for CogVideoX.*\n\nUse model's own, CogVideoX DDIM"),
        ("Euler ancestral", {"prediction_type": "sample"}, "takes epsilon, v_prediction predictions.*'sample'"),
        (
            MODELS_OWN,
            {"_class_name": "RePaintScheduler"},
            "names 'RePaintScheduler', which the Parallel Sampler does not",
        ),
        (MODELS_OWN, {"_class_name": "AutoencoderKL"}, "names 'AutoencoderKL'"),
        ("Euler flow", {**CONFIGS[FLOW], "use_dynamic_shifting": True}, "names 'use_dynamic_shifting'"),
        ("Euler flow", {**CONFIGS[FLOW], "invert_sigmas": True}, "names 'invert_sigmas'"),
        ("DDIM", {"beta_schedule": "elliptic"}, "DDIMScheduler cannot be made .*elliptic"),
    ],
)
def test_a_scheduler_that_does_not_fit_is_refused_in_words(name: str, config: dict, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        build_scheduler(name, config)


@pytest.mark.parametrize(
    ("name", "steps", "denoise", "words"),
    [
        ("DDIM", 0, 1.0, "steps=0"),
        ("DDIM", 5, 0.0, "denoise=0.0 does not work"),
        ("LCM", 60, 1.0, "LCMScheduler cannot make 60 steps"),
        ("DDIM", 1200, 1.0, "DDIMScheduler cannot make 1200 steps"),
    ],
)
def test_steps_that_a_scheduler_cannot_make_are_refused(name: str, steps: int, denoise: float, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Stepper.prepare(build(name), steps, denoise=denoise)


# Patch by patch.


def regions() -> list[torch.Tensor]:
    """Patches as PipeFusion has them: ranges of the image's rows, then of a row's pixels."""
    owner = torch.arange(SHAPE[-2] * SHAPE[-1]) * PATCHES // (SHAPE[-2] * SHAPE[-1])
    return [(owner == patch).reshape(SHAPE[-2:]) for patch in range(PATCHES)]


def patch_error(scheduler: Any, whole_steps: int) -> float:
    """The largest deviation of a patch's run, in which every other pixel is garbage, from the whole run."""
    noise, original = randn(1), randn(2)
    whole = Stepper.prepare(scheduler, STEPS, generator=seeded())
    predictions = [randn(100 + index) for index in range(len(whole))]
    latents, worst = whole.initial(noise, original), 0.0
    runs: list[tuple[torch.Tensor, Stepper, torch.Tensor]] = []
    for index, prediction in enumerate(predictions):
        if index == whole_steps:
            runs = [(region, whole.copy(), latents) for region in regions()]
        for patch, (region, stepper, own) in enumerate(runs):
            garbage = 50 * randn(1000 + 10 * index + patch)
            own = torch.where(region, own, garbage)
            stepper.model_input(own, index)
            own = stepper.step(torch.where(region, prediction, garbage.flip(0)), index, own)
            runs[patch] = (region, stepper, own)
        whole.model_input(latents, index)
        latents = whole.step(prediction, index, latents)
        assert latents.isfinite().all()
        worst = max([worst] + [(own - latents)[..., region].abs().max().item() for region, _, own in runs])
    return worst


@pytest.mark.parametrize("whole_steps", [1, 2])
@pytest.mark.parametrize("name", NAMED)
def test_a_patch_does_not_see_other_pixels(name: str, whole_steps: int) -> None:
    scheduler = build(name)
    check_patchwise(scheduler)
    assert patch_error(scheduler, whole_steps) == 0


@pytest.mark.parametrize("name", ["DDIM", "DDPM", "DPM++ 2M", "UniPC", "LCM"])
def test_dynamic_thresholding_sees_the_whole_image_and_is_refused(name: str) -> None:
    scheduler = build(name, thresholding=True, sample_max_value=100.0)
    assert patch_error(scheduler, 1) > 1e-3
    with pytest.raises(PlanError, match="quantile over the whole image"):
        check_patchwise(scheduler)
