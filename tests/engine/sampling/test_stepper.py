"""A Stepper against the loops of diffusers' pipelines: timesteps, noise levels, clean latents, history."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from parallel_backend.sampling.schedulers import (
    FLOW,
    SCHEDULERS,
    build_scheduler,
)
from parallel_backend.sampling.stepper import Stepper
from tests.support.cases.scheduler_cases import (
    CONFIGS,
    NAMED,
    NAMED_FLOW,
    SHAPE,
    STEPS,
    build,
    model,
    plain_loop,
    randn,
    run,
    seeded,
    set_like_pipeline,
)

pytestmark = pytest.mark.filterwarnings("ignore:__array")  # diffusers on NumPy 2


@pytest.mark.parametrize("name", NAMED)
def test_a_run_equals_a_pipelines_loop(name: str) -> None:
    scheduler = build(name)
    plain, noise = copy.deepcopy(scheduler), randn(1)
    set_like_pipeline(plain, STEPS)
    expected = plain_loop(plain, noise * getattr(plain, "init_noise_sigma", 1.0), plain.timesteps)
    stepper = Stepper.prepare(scheduler, STEPS, generator=seeded())
    assert stepper.timesteps == plain.timesteps.tolist() and len(stepper) == len(plain.timesteps)
    assert torch.equal(run(stepper, stepper.initial(noise, randn(2)), model), expected)


@pytest.mark.parametrize("name", [name for name in NAMED if name != "LMS"])
def test_a_partial_run_equals_an_image_to_image_pipelines_loop(name: str) -> None:
    scheduler = build(name)
    plain, noise, original = copy.deepcopy(scheduler), randn(1), randn(2)
    set_like_pipeline(plain, 10)  # steps 6, denoise 0.6
    begin = (10 - STEPS) * plain.order
    timesteps = plain.timesteps[begin:]
    if hasattr(plain, "set_begin_index"):
        plain.set_begin_index(begin)
    if hasattr(plain, "scale_noise"):
        latents = plain.scale_noise(original, timesteps[:1], noise)
    else:
        latents = plain.add_noise(original, noise, timesteps[:1])
    stepper = Stepper.prepare(scheduler, STEPS, denoise=0.6, generator=seeded())
    assert stepper.timesteps == timesteps.tolist()
    assert len(stepper) == (2 * STEPS - 1 if plain.order == 2 else STEPS)
    entering = stepper.initial(noise, original)
    torch.testing.assert_close(entering, latents, rtol=1e-6, atol=1e-6)
    expected = plain_loop(plain, latents, timesteps)
    torch.testing.assert_close(run(stepper, entering, model), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["Heun flow", "DPM++ 2M flow", "UniPC flow"])
def test_a_flow_scheduler_keeps_the_models_shift_when_its_class_changes(name: str) -> None:
    """All spend as many of their steps above a noise level as the model's own shift asks, give or take their grids."""
    stepper = Stepper.prepare(build_scheduler(name, CONFIGS[FLOW]), 40)
    unshifted = Stepper.prepare(build_scheduler(name, {**CONFIGS[FLOW], "shift": 1.0}), 40)
    linear = np.array([sigma for _, sigma, _ in unshifted.levels])
    expected = 3 * linear / (1 + 2 * linear)
    np.testing.assert_allclose([sigma for _, sigma, _ in stepper.levels], expected, atol=0.02)


# Noise levels and clean latents.


def independent_level(scheduler: Any, position: int) -> tuple[float, float]:
    """What multiplies clean latents and noise in the model's input, from the scheduler's tables."""
    if hasattr(scheduler, "sigmas"):
        sigma = scheduler.sigmas[position].item()
        if "FlowMatch" in type(scheduler).__name__ or scheduler.config.get("use_flow_sigmas"):
            return 1 - sigma, sigma
        return 1 / (sigma**2 + 1) ** 0.5, sigma / (sigma**2 + 1) ** 0.5
    alpha = scheduler.alphas_cumprod[int(scheduler.timesteps[position])].item()
    return alpha**0.5, (1 - alpha) ** 0.5


def cases() -> list[tuple[str, str]]:
    kinds = [(name, kind) for name in NAMED for kind in SCHEDULERS[name].predictions]
    return [(name, kind) for name, kind in kinds if SCHEDULERS[name].kind != FLOW] + [
        (name, FLOW) for name in NAMED_FLOW
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("denoise", [1.0, 0.5])
@pytest.mark.parametrize(("name", "kind"), cases())
def test_a_model_that_knows_the_image_previews_it_at_every_step_and_ends_there(
    name: str, kind: str, denoise: float
) -> None:
    config = {} if kind == FLOW else {"prediction_type": kind, "rescale_betas_zero_snr": False}
    # 5 and 10 divide 1000: CogVideoX's trailing timesteps miss the end by one where the number of steps does not.
    stepper = Stepper.prepare(build(name, **config), 5, denoise=denoise, generator=seeded())
    image = randn(5)
    latents = stepper.initial(randn(1), image)
    for index in range(len(stepper)):
        model_input = stepper.model_input(latents, index)
        alpha, sigma = independent_level(stepper.scheduler, stepper.begin + index)
        noise = (model_input - alpha * image) / sigma
        prediction = {
            "epsilon": noise,
            "v_prediction": alpha * noise - sigma * image,
            "sample": image,
            FLOW: (model_input - image) / sigma,
        }[kind]
        preview = stepper.denoised(prediction, index, model_input)
        torch.testing.assert_close(preview, image, rtol=1e-4, atol=1e-4 / alpha if alpha else 1e-4)
        latents = stepper.step(prediction, index, latents)
    torch.testing.assert_close(latents, image, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("name", NAMED)
def test_the_original_is_noised_to_the_level_of_each_call_and_is_itself_in_the_end(name: str) -> None:
    stepper = Stepper.prepare(build(name), STEPS, denoise=0.5)
    noise, original = randn(1), randn(2)
    assert torch.equal(stepper.initial(noise, original), stepper.noised(original, noise, 0))
    for index in range(len(stepper)):
        alpha, sigma = independent_level(stepper.scheduler, stepper.begin + index)
        noised = stepper.model_input(stepper.noised(original, noise, index), index)
        torch.testing.assert_close(noised, alpha * original + sigma * noise, rtol=1e-5, atol=1e-5)
        stepper.step(torch.zeros(SHAPE), index, original)
    assert torch.equal(stepper.noised(original, noise, len(stepper)), original)


def test_lms_in_the_middle_of_a_schedule_counts_only_the_history_that_it_has() -> None:
    """diffusers alone takes fourth-order coefficients at the first step there, and misses the image."""
    plain = build("LMS")
    plain.set_timesteps(12)
    plain.set_begin_index(6)
    image = randn(5)
    noise, latents = randn(1), None
    latents = plain.add_noise(image, noise, plain.timesteps[6:7])
    for t in plain.timesteps[6:]:
        plain.scale_model_input(latents, t)
        latents = plain.step(noise, t, latents).prev_sample
    assert (latents - image).abs().max() > 0.1
    stepper = Stepper.prepare(build("LMS"), STEPS, denoise=0.5)
    found = run(stepper, stepper.initial(noise, image), lambda _input, _t: noise)
    torch.testing.assert_close(found, image, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMED)
def test_a_stepper_changes_neither_the_scheduler_nor_the_tensors_that_it_is_given(name: str) -> None:
    scheduler = build(name)
    before = copy.deepcopy(vars(scheduler))
    stepper = Stepper.prepare(scheduler, STEPS, generator=seeded())
    latents = stepper.initial(randn(1), randn(2))
    kept = latents.clone()
    model_input = stepper.model_input(latents, 0)
    model_input.zero_()
    stepper.step(randn(3), 0, latents)
    assert torch.equal(latents, kept)
    assert str(before) == str(vars(scheduler))
