"""diffusers' schedulers behind one adapter: as exact as a pipeline's loop, and patch by patch only where that is exact.

The census goes over every scheduler class of the installed diffusers: what `PATCHWISE` says of it is put to the test.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import diffusers.schedulers
import numpy as np
import pytest
import torch
from diffusers.configuration_utils import ConfigMixin

from parallel_backend.errors import PlanError, RequestError
from parallel_backend.schedulers import (
    COGVIDEOX,
    FLOW,
    INVERSE,
    MODELS_OWN,
    OWN_LOOP,
    PATCHWISE,
    SCHEDULERS,
    TOKENS,
    WHOLE_IMAGE,
    build_scheduler,
    census_table,
    check_patchwise,
)
from parallel_backend.stepper import Stepper

pytestmark = pytest.mark.filterwarnings("ignore:__array")  # diffusers on NumPy 2
STEPS = 6
SHAPE = (2, 4, 6, 6)
PATCHES = 3
ALL_SCHEDULERS = {
    name: value
    for module in pkgutil.walk_packages(diffusers.schedulers.__path__, "diffusers.schedulers.")
    for name, value in vars(importlib.import_module(module.name)).items()
    if inspect.isclass(value) and value.__module__ == module.name and issubclass(value, ConfigMixin)
}
RUNNABLE = [name for name, reason in PATCHWISE.items() if reason is None]
ARGUMENTS = {
    "AmusedScheduler": {"mask_token_id": 3},
    "RFD4ProteinaScheduler": {
        "schedule_mode": "log",
        "noise_mode": "tan",
        "tsr_k": 1.0,
        "tsr_sigma": 1.0,
        "tail_steps": 1,
    },
    "VQDiffusionScheduler": {"num_vec_classes": 5},
}
REFUSALS = (TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError)
CONFIGS = {
    "diffusion": {"_class_name": "DDIMScheduler", "beta_schedule": "linear", "clip_sample": False},
    FLOW: {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0},
    COGVIDEOX: {
        "_class_name": "CogVideoXDPMScheduler",
        "prediction_type": "v_prediction",
        "rescale_betas_zero_snr": True,
        "snr_shift_scale": 1.0,
        "timestep_spacing": "trailing",
    },
}
FLUX = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 4096,
    "max_shift": 1.15,
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": True,
}
NAMED = [name for name in SCHEDULERS if name != MODELS_OWN]
NAMED_FLOW = [name for name in NAMED if SCHEDULERS[name].flow]


def randn(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def model(model_input: torch.Tensor, timestep: float) -> torch.Tensor:
    """A model with a mind of its own: neither linear nor blind to the timestep."""
    return torch.tanh(0.7 * model_input + 1e-3 * timestep)


def build(name: str, **config: object) -> Any:
    return build_scheduler(name, {**CONFIGS[SCHEDULERS[name].kind], **config})


def run(
    stepper: Stepper, latents: torch.Tensor, predict: Callable[[torch.Tensor, float], torch.Tensor]
) -> torch.Tensor:
    for index, timestep in enumerate(stepper.timesteps):
        latents = stepper.step(predict(stepper.model_input(latents, index), timestep), index, latents)
    return latents


def plain_loop(scheduler: Any, latents: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
    """The denoising loop of a diffusers pipeline."""
    takes_generator = "generator" in inspect.signature(scheduler.step).parameters
    extra = {"generator": seeded()} if takes_generator else {}
    old = None
    for index, t in enumerate(timesteps):
        scaled = scheduler.scale_model_input(latents, t) if hasattr(scheduler, "scale_model_input") else latents
        prediction = model(scaled, t.item())
        if type(scheduler).__name__ == "CogVideoXDPMScheduler":
            back = timesteps[index - 1] if index > 0 else None
            latents, old = scheduler.step(prediction, old, t, back, latents, **extra, return_dict=False)
        else:
            latents = scheduler.step(prediction, t, latents, **extra, return_dict=False)[0]
    return latents


def set_like_pipeline(scheduler: Any, steps: int) -> None:
    """Flux's pipeline for flow matching, with its exception for schedulers with flow sigmas; DiT's for the others."""
    if "FlowMatchEuler" in type(scheduler).__name__:
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps))
    else:
        scheduler.set_timesteps(steps)


# The census.


def test_the_table_has_every_scheduler_class_of_diffusers_and_no_other() -> None:
    assert set(PATCHWISE) == set(ALL_SCHEDULERS)


def regions() -> list[torch.Tensor]:
    """Patches as PipeFusion has them: ranges of the image's rows, then of a row's pixels."""
    owner = torch.arange(SHAPE[-2] * SHAPE[-1]) * PATCHES // (SHAPE[-2] * SHAPE[-1])
    return [(owner == patch).reshape(SHAPE[-2:]) for patch in range(PATCHES)]


def patch_error(scheduler: Any, whole_steps: int) -> float:
    """The largest deviation of a patch's run, in which every other pixel is garbage, from the whole run."""
    noise, original = randn(1), randn(2)
    whole = Stepper.prepare(scheduler, STEPS, generator=seeded(), image_tokens=64)
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("whole_steps", [1, 2])
@pytest.mark.parametrize("name", RUNNABLE)
def test_a_patch_of_an_elementwise_scheduler_does_not_see_other_pixels(name: str, whole_steps: int) -> None:
    scheduler = ALL_SCHEDULERS[name]()
    check_patchwise(scheduler)
    assert patch_error(scheduler, whole_steps) == 0


@pytest.mark.parametrize("name", [name for name, reason in PATCHWISE.items() if reason in (OWN_LOOP, TOKENS)])
def test_a_scheduler_with_a_loop_of_its_own_cannot_be_run_by_a_plain_one(name: str) -> None:
    scheduler = ALL_SCHEDULERS[name](**ARGUMENTS.get(name, {}))
    with pytest.raises(REFUSALS):
        scheduler.set_timesteps(STEPS)
        plain_loop(scheduler, randn(1), scheduler.timesteps)
    with pytest.raises(RequestError, match=f"{name} cannot sample here"):
        build_scheduler(MODELS_OWN, {"_class_name": name})


@pytest.mark.parametrize("name", [name for name, reason in PATCHWISE.items() if reason == INVERSE])
def test_an_inverse_scheduler_goes_from_data_to_noise(name: str) -> None:
    scheduler = ALL_SCHEDULERS[name]()
    scheduler.set_timesteps(STEPS)
    times = scheduler.timesteps.tolist()
    assert times == sorted(times) and times[0] < times[-1]


def test_score_sde_ve_corrects_a_pixel_by_the_norm_of_the_others() -> None:
    assert [name for name, reason in PATCHWISE.items() if reason == WHOLE_IMAGE] == ["ScoreSdeVeScheduler"]
    scheduler = ALL_SCHEDULERS["ScoreSdeVeScheduler"]()
    scheduler.set_timesteps(STEPS)
    region, prediction, latents = regions()[0], randn(1), randn(2)
    other = torch.where(region, prediction, 50 * randn(3))
    steps = [scheduler.step_correct(each, latents, generator=seeded()).prev_sample for each in (prediction, other)]
    assert (steps[0] - steps[1])[..., region].abs().max() > 1e-3


@pytest.mark.parametrize(
    "name", [name for name in RUNNABLE if "thresholding" in inspect.signature(ALL_SCHEDULERS[name]).parameters]
)
def test_dynamic_thresholding_sees_the_whole_image_and_is_refused(name: str) -> None:
    scheduler = ALL_SCHEDULERS[name](thresholding=True, sample_max_value=100.0)
    if name != "TCDScheduler":  # which takes the option and does nothing with it
        assert patch_error(scheduler, 1) > 1e-3
    with pytest.raises(PlanError, match="quantile over the whole image.*DPM\\+\\+ 2M"):
        check_patchwise(scheduler)


def test_a_scheduler_that_resizes_the_image_is_refused() -> None:
    scheduler = ALL_SCHEDULERS["FlowMatchLCMScheduler"](scale_factors=[0.5, 1.0])
    with pytest.raises(PlanError, match="FlowMatchLCMScheduler cannot run patch by patch.*resizes.*Euler flow"):
        check_patchwise(scheduler)


def test_a_refusal_names_the_scheduler_why_and_what_to_use() -> None:
    with pytest.raises(PlanError, match="ScoreSdeVeScheduler.*norm of the whole image.*DPM\\+\\+ 2M.*one patch"):
        check_patchwise(ALL_SCHEDULERS["ScoreSdeVeScheduler"]())

    class UnheardOfScheduler(ALL_SCHEDULERS["DDIMScheduler"]):
        """A class of a later diffusers."""

    with pytest.raises(PlanError, match="UnheardOfScheduler.*does not know it.*DDIM"):
        check_patchwise(UnheardOfScheduler())


@pytest.mark.parametrize("name", NAMED)
def test_every_scheduler_that_a_user_can_pick_runs_patch_by_patch(name: str) -> None:
    scheduler = build(name)
    check_patchwise(scheduler)
    assert patch_error(scheduler, 1) == 0


def test_the_census_prints_as_a_table() -> None:
    table = census_table()
    print(table)
    assert len(table.splitlines()) == len(ALL_SCHEDULERS) + 2
    assert "| DDIMScheduler | yes |  |" in table


# The adapter against pipelines.


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
    add_noise = plain.scale_noise if hasattr(plain, "scale_noise") else None
    if add_noise:
        latents = add_noise(original, timesteps[:1], noise)
    else:
        latents = plain.add_noise(original, noise, timesteps[:1])
    stepper = Stepper.prepare(scheduler, STEPS, denoise=0.6, generator=seeded())
    assert stepper.timesteps == timesteps.tolist()
    assert len(stepper) == (2 * STEPS - 1 if plain.order == 2 else STEPS)
    entering = stepper.initial(noise, original)
    torch.testing.assert_close(entering, latents, rtol=1e-6, atol=1e-6)
    expected = plain_loop(plain, latents, timesteps)
    torch.testing.assert_close(run(stepper, entering, model), expected, rtol=1e-5, atol=1e-5)


def test_the_shift_for_an_images_size_is_that_of_fluxs_pipeline() -> None:
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    plain = ALL_SCHEDULERS["FlowMatchEulerDiscreteScheduler"].from_config(FLUX)
    plain.set_timesteps(sigmas=np.linspace(1.0, 1 / STEPS, STEPS), mu=calculate_shift(1024))
    stepper = Stepper.prepare(build_scheduler(MODELS_OWN, FLUX), STEPS, image_tokens=1024)
    assert stepper.timesteps == plain.timesteps.tolist()
    with pytest.raises(RequestError, match="how many tokens"):
        Stepper.prepare(build_scheduler("Euler flow", FLUX), STEPS)


@pytest.mark.parametrize("name", ["Heun flow", "DPM++ 2M flow", "UniPC flow"])
@pytest.mark.parametrize("config", [FLUX, CONFIGS[FLOW]])
def test_a_flow_scheduler_keeps_the_models_shift_when_its_class_changes(name: str, config: dict) -> None:
    """All spend as many of their steps above a noise level as the model's own shift asks, give or take their grids."""
    stepper = Stepper.prepare(build_scheduler(name, config), 40, image_tokens=1024)
    unshifted = Stepper.prepare(build_scheduler(name, {**CONFIGS[FLOW], "shift": 1.0}), 40)
    linear = np.array([sigma for _, sigma, _ in unshifted.levels])
    shift = np.exp(0.63) if config is FLUX else 3.0
    expected = shift * linear / (1 + (shift - 1) * linear)
    np.testing.assert_allclose([sigma for _, sigma, _ in stepper.levels], expected, atol=0.02)


def test_sd3s_pipeline_leaves_the_sigmas_to_the_scheduler() -> None:
    scheduler = build("Euler flow")
    plain = copy.deepcopy(scheduler)
    plain.set_timesteps(STEPS)
    assert Stepper.prepare(scheduler, STEPS, linear_sigmas=False).timesteps == plain.timesteps.tolist()


@pytest.mark.parametrize("last", [0.0, 0.2])
def test_a_hosts_own_sigmas_are_taken_as_they_are(last: float) -> None:
    """Euler's method written out; with a last sigma above zero, the noise that is left stays."""
    sigmas, noise, original = [1.0, 0.8, 0.55, 0.3, last], randn(1), randn(2)
    for name, scale in (("Euler flow", 1.0), ("Euler", 10.0)):
        mine = [scale * sigma for sigma in sigmas]
        times = [100.0, 80.0, 50.0, 20.0]
        stepper = Stepper.prepare_explicit(build(name), mine, timesteps=times)
        flow = SCHEDULERS[name].flow
        latents = stepper.initial(noise, original)
        x = expected = (1 - mine[0]) * original + mine[0] * noise if flow else original + mine[0] * noise
        torch.testing.assert_close(latents, x)
        for sigma, after, t in zip(mine, mine[1:], times, strict=False):
            expected = expected + (after - sigma) * model(expected if flow else expected / (sigma**2 + 1) ** 0.5, t)
        torch.testing.assert_close(run(stepper, latents, model), expected, rtol=1e-5, atol=1e-5)
        left = (1 - mine[-1]) * original + mine[-1] * noise if flow else original + mine[-1] * noise
        torch.testing.assert_close(stepper.noised(original, noise, len(stepper)), left)


def test_explicit_sigmas_are_refused_where_diffusers_has_no_place_for_them() -> None:
    with pytest.raises(RequestError, match="DDIMScheduler takes no sigmas from outside; use Euler"):
        Stepper.prepare_explicit(build("DDIM"), [1.0, 0.0])
    with pytest.raises(RequestError, match="one sigma more"):
        Stepper.prepare_explicit(build("Euler flow"), [1.0, 0.5, 0.0], timesteps=[1000.0])


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
    return [(name, kind) for name, kind in kinds if not SCHEDULERS[name].flow] + [(name, FLOW) for name in NAMED_FLOW]


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("denoise", [1.0, 0.5])
@pytest.mark.parametrize("name", [name for name in RUNNABLE if hasattr(ALL_SCHEDULERS[name], "scale_model_input")])
def test_the_noise_level_of_a_call_is_the_one_that_the_models_input_is_scaled_for(name: str, denoise: float) -> None:
    """Half steps of the midpoint solvers too, whose level is in no table of timesteps."""
    if name == "PNDMScheduler":  # its runs are whole ones
        denoise = 1.0
    stepper = Stepper.prepare(ALL_SCHEDULERS[name](), STEPS, denoise=denoise, generator=seeded())
    latents = randn(1)
    for index in range(len(stepper)):
        model_input = stepper.model_input(latents, index)
        torch.testing.assert_close(model_input, latents * stepper.levels[index][2], rtol=1e-5, atol=1e-6)
        latents = stepper.step(randn(2), index, latents)


@pytest.mark.filterwarnings("ignore")
def test_a_midpoint_solver_passes_through_the_noise_levels_that_it_says() -> None:
    stepper = Stepper.prepare(ALL_SCHEDULERS["KDPM2DiscreteScheduler"](), STEPS)
    noise, image = randn(1), randn(2)
    latents = stepper.noised(image, noise, 0)
    for index in range(len(stepper)):
        torch.testing.assert_close(latents, stepper.noised(image, noise, index), rtol=1e-4, atol=1e-4)
        latents = stepper.step(noise, index, latents)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("MiniMaxH3Scheduler", {}),
        ("FlowMatchEulerDiscreteScheduler", {"invert_sigmas": True}),  # Mochi's
        ("LTXEulerAncestralRFScheduler", {}),
    ],
)
def test_a_flow_told_the_other_way_round_previews_and_ends_with_the_image(name: str, config: dict) -> None:
    stepper = Stepper.prepare(ALL_SCHEDULERS[name](**config), STEPS, denoise=0.5, generator=seeded())
    image, sign = randn(2), 1 if name.startswith("LTX") else -1
    latents = stepper.initial(randn(1), image)
    for index, timestep in enumerate(stepper.timesteps):
        sigma = {"MiniMaxH3Scheduler": 1 - timestep, "LTXEulerAncestralRFScheduler": timestep / 1000}.get(
            name, 1 - timestep / 1000
        )
        prediction = sign * (latents - image) / sigma
        torch.testing.assert_close(stepper.denoised(prediction, index, latents), image, rtol=1e-4, atol=1e-4)
        latents = stepper.step(prediction, index, latents)
    torch.testing.assert_close(latents, image, rtol=1e-4, atol=1e-4)


def test_an_edm_model_previews_through_its_preconditioning() -> None:
    stepper = Stepper.prepare(ALL_SCHEDULERS["EDMEulerScheduler"](), STEPS)
    image = randn(2)
    latents = stepper.initial(randn(1), image)
    for index in range(len(stepper)):
        sigma = stepper.scheduler.sigmas[index].item()
        skip, out = 0.25 / (sigma**2 + 0.25), 0.5 * sigma / (sigma**2 + 0.25) ** 0.5
        prediction = (image - skip * latents) / out
        preview = stepper.denoised(prediction, index, stepper.model_input(latents, index))
        torch.testing.assert_close(preview, image, rtol=1e-3, atol=1e-3)
        latents = stepper.step(prediction, index, latents)
    torch.testing.assert_close(latents, image, rtol=1e-3, atol=1e-3)


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


# State.


@pytest.mark.parametrize("name", ["DDPM", "Euler ancestral", "DPM++ 2M SDE", "LCM", "CogVideoX DPM"])
def test_a_copy_draws_the_same_noise_and_leaves_its_original_alone(name: str) -> None:
    stepper = Stepper.prepare(build(name), STEPS, generator=seeded())
    latents = stepper.initial(randn(1), randn(2))
    for index in range(2):
        latents = stepper.step(model(stepper.model_input(latents, index), 0), index, latents)
    twins = [stepper.copy(), stepper.copy()]
    ends = []
    for twin in [*twins, stepper]:
        mine = latents
        for index in range(2, STEPS):
            mine = twin.step(model(twin.model_input(mine, index), 0), index, mine)
        ends.append(mine)
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


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


@pytest.mark.parametrize("name", ["DPMSolverSDEScheduler", "CosineDPMSolverMultistepScheduler"])
@pytest.mark.filterwarnings("ignore")
def test_noise_from_a_brownian_tree_follows_the_seed(name: str) -> None:
    ends = []
    for seed in (11, 11, 12):
        generator = torch.Generator().manual_seed(seed)
        stepper = Stepper.prepare(ALL_SCHEDULERS[name](), STEPS, generator=generator)
        ends.append(run(stepper, stepper.initial(randn(1), randn(2)), model))
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


# What is built, and what is refused.


def test_the_names_are_listed_without_diffusers_or_torch() -> None:
    code = "import sys, parallel_backend.schedulers; print('torch' in sys.modules, 'diffusers' in sys.modules)"
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
    with pytest.raises(RequestError, match="'DDIM' is for diffusion models.*flow matching.*Euler flow"):
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
        ("Euler", FLUX, "'Euler' is for diffusion models, and this model's .* flow matching .*use .*Euler flow"),
        ("Euler", {"_class_name": "UniPCMultistepScheduler", "prediction_type": "flow_prediction"}, "flow matching"),
        ("UniPC flow", CONFIGS["diffusion"], "'UniPC flow' is for flow matching models.* DPM\\+\\+ 2M"),
        ("DDIM", CONFIGS[COGVIDEOX], "for CogVideoX.*use model's own, CogVideoX DDIM"),
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
