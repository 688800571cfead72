"""Which of diffusers' scheduler classes may run patch by patch: the table is held against every one of them."""

from __future__ import annotations

import inspect
from typing import Any

import diffusers
import pytest
import torch
from packaging.version import Version

from parallel_backend.errors import PlanError, RequestError
from parallel_backend.sampling.schedulers import (
    INVERSE,
    MODELS_OWN,
    OWN_LOOP,
    PATCHWISE,
    TOKENS,
    WHOLE_IMAGE,
    build_scheduler,
    check_patchwise,
)
from parallel_backend.sampling.stepper import Stepper
from tests.support.cases.scheduler_cases import (
    ALL_SCHEDULERS,
    ARGUMENTS,
    NAMED,
    PATCHES,
    REFUSALS,
    RUNNABLE,
    SHAPE,
    STEPS,
    build,
    plain_loop,
    randn,
    seeded,
)

# Classes that are newer than the oldest diffusers of requirements.txt.
SINCE = {"PiflowScheduler": "0.42", "RFD4ProteinaScheduler": "0.42"}
pytestmark = pytest.mark.filterwarnings("ignore:__array")  # diffusers on NumPy 2


def test_the_table_has_every_scheduler_class_of_diffusers_and_no_other() -> None:
    installed = Version(diffusers.__version__)
    newer = {name for name, since in SINCE.items() if installed < Version(since)}
    assert set(PATCHWISE) - newer == set(ALL_SCHEDULERS)


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


@pytest.mark.parametrize("name", [name for name in ALL_SCHEDULERS if PATCHWISE.get(name) in (OWN_LOOP, TOKENS)])
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
    with pytest.raises(PlanError, match=r"quantile over the whole image.*\n\n.*DPM\+\+ 2M"):
        check_patchwise(scheduler)


def test_a_scheduler_that_resizes_the_image_is_refused() -> None:
    scheduler = ALL_SCHEDULERS["FlowMatchLCMScheduler"](scale_factors=[0.5, 1.0])
    with pytest.raises(PlanError, match=r"FlowMatchLCMScheduler cannot run patch by patch.*resizes.*\n\n.*Euler flow"):
        check_patchwise(scheduler)


def test_a_refusal_names_the_scheduler_why_and_what_to_use() -> None:
    with pytest.raises(PlanError, match=r"ScoreSdeVeScheduler.*norm of the whole image.*\n\n.*DPM\+\+ 2M.*one patch"):
        check_patchwise(ALL_SCHEDULERS["ScoreSdeVeScheduler"]())

    class UnheardOfScheduler(ALL_SCHEDULERS["DDIMScheduler"]):
        """A class of a later diffusers."""

    with pytest.raises(PlanError, match=r"UnheardOfScheduler.*does not know it.*\n\n.*DDIM"):
        check_patchwise(UnheardOfScheduler())


@pytest.mark.parametrize("name", NAMED)
def test_every_scheduler_that_a_user_can_pick_runs_patch_by_patch(name: str) -> None:
    scheduler = build(name)
    check_patchwise(scheduler)
    assert patch_error(scheduler, 1) == 0
