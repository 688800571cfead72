"""What a scheduler's name and a model's config make, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch

from parallel_backend.errors import RequestError
from parallel_backend.sampling.schedulers import (
    COGVIDEOX,
    MODELS_OWN,
    build_scheduler,
)
from parallel_backend.sampling.stepper import Stepper
from tests.support.cases.scheduler_cases import ALL_SCHEDULERS, CONFIGS, FLUX, STEPS, build, model, randn, run

pytestmark = pytest.mark.filterwarnings("ignore:__array")  # diffusers on NumPy 2


def test_the_names_are_listed_without_diffusers_or_torch() -> None:
    code = "import sys, parallel_backend.sampling.schedulers; print('torch' in sys.modules, 'diffusers' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.split() == ["False", "False"]


def test_swapping_keeps_the_models_schedule_as_diffusers_does() -> None:
    own = {**CONFIGS["diffusion"], "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
    swapped = ALL_SCHEDULERS["EulerDiscreteScheduler"].from_config(
        ALL_SCHEDULERS["DDIMScheduler"].from_config(own).config
    )
    built = build_scheduler("Euler", own)
    assert dict(built.config).items() >= {key: swapped.config[key] for key in own if key[0] != "_"}.items()
    assert torch.equal(built.sigmas, swapped.sigmas)


@pytest.mark.parametrize(
    ("config", "class_name"),
    [
        ({}, "DDIMScheduler"),
        ({"_class_name": "DPMSolverMultistepScheduler"}, "DPMSolverMultistepScheduler"),
        (FLUX, "FlowMatchEulerDiscreteScheduler"),
        (CONFIGS[COGVIDEOX], "CogVideoXDPMScheduler"),
    ],
)
def test_the_models_own_scheduler_is_the_one_that_its_config_names(config: Mapping, class_name: str) -> None:
    assert type(build_scheduler(MODELS_OWN, config)).__name__ == class_name


def test_a_familys_default_stands_in_for_a_missing_config() -> None:
    default = {"_class_name": "FlowMatchEulerDiscreteScheduler"}
    assert type(build_scheduler(MODELS_OWN, {}, default)).__name__ == "FlowMatchEulerDiscreteScheduler"
    with pytest.raises(RequestError, match=r"'DDIM' is for diffusion models.*flow matching.*\n\n.*Euler flow"):
        build_scheduler("DDIM", {}, default)


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
        ("Euler", FLUX, r"'Euler' is for diffusion models, and this model's .* flow matching .*\n\nUse .*Euler flow"),
        ("Euler", {"_class_name": "UniPCMultistepScheduler", "prediction_type": "flow_prediction"}, "flow matching"),
        ("UniPC flow", CONFIGS["diffusion"], r"'UniPC flow' is for flow matching models.*\n\n.* DPM\+\+ 2M"),
        ("DDIM", CONFIGS[COGVIDEOX], r"for CogVideoX.*\n\nUse model's own, CogVideoX DDIM"),
        ("Euler ancestral", {"prediction_type": "sample"}, "takes epsilon, v_prediction predictions.*'sample'"),
        (MODELS_OWN, {"_class_name": "NoSuchScheduler"}, "names 'NoSuchScheduler', which diffusers"),
        (MODELS_OWN, {"_class_name": "AutoencoderKL"}, "names 'AutoencoderKL'"),
        (MODELS_OWN, {"_class_name": "RePaintScheduler"}, "RePaintScheduler cannot sample here: only its own pipeline"),
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


def test_pndm_does_not_begin_in_the_middle() -> None:
    with pytest.raises(RequestError, match="PNDM cannot begin in the middle"):
        Stepper.prepare(ALL_SCHEDULERS["PNDMScheduler"](), STEPS, denoise=0.5)
