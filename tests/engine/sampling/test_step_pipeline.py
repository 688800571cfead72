"""Which steps PipeFusion runs whole, when a sampler asks for one at a time. `test_host_models.py` has the results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parallel_backend.errors import RequestError
from parallel_backend.groups.calls import Call
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.pipeline.step_pipeline import MOST_KINDS, StepPipeline, count_picture_tokens

TEXT, OTHER = torch.zeros(1, 5, 8), torch.ones(1, 5, 8)
WHOLE, PATCHES = [[0, 1, 2]], [[0], [1], [2]]


def step(timestep: float, rows: int = 8, text: torch.Tensor = TEXT, **options: Any) -> list[Call]:
    latents = torch.zeros(1, 4, rows, 6)
    return [Call((latents, torch.tensor([timestep])), {"context": text, "transformer_options": options})]


def count(call: Call) -> int:
    return count_picture_tokens(call, lambda latents: (2, 2))


def turns(pipeline: StepPipeline, calls: list[Call]) -> list[list[int]]:
    return [forward.running for (forward,) in pipeline.begin(calls, [0], count)]


@pytest.fixture
def pipeline() -> StepPipeline:
    """After the two steps that its plan runs whole, and one patch by patch."""
    made = StepPipeline(ParallelPlan(pipefusion=2, patches=3, sync_steps=2))
    assert [turns(made, step(timestep)) for timestep in (1000.0, 900.0, 800.0)] == [WHOLE, WHOLE, PATCHES]
    assert not made.why
    return made


def test_a_step_whose_keys_are_of_the_step_before_runs_patch_by_patch(pipeline: StepPipeline) -> None:
    for timestep in (800.0, 700.0, 740.0, 0.0):  # a sampler of a higher order repeats a timestep, or goes back a little
        assert turns(pipeline, step(timestep)) == PATCHES
        assert not pipeline.why


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        (step(900.0), "earlier timestep"),
        (step(700.0, text=OTHER), "conditions"),
        (step(700.0, rows=10), "shapes"),
        (step(700.0) + step(700.0), "shapes"),
        (step(700.0, patches_replace={"dit": {("double_block", 1): None}}), "nodes"),
    ],
    ids=("back", "conditions", "size", "calls", "node"),
)
def test_any_other_step_runs_whole_and_says_why(pipeline: StepPipeline, calls: list[Call], why: str) -> None:
    assert turns(pipeline, calls) == WHOLE
    assert why in pipeline.why


def test_a_step_after_memory_was_freed_runs_whole_and_says_why(pipeline: StepPipeline) -> None:
    pipeline.forget("memory was freed")
    assert turns(pipeline, step(700.0)) == WHOLE and pipeline.why == "memory was freed"
    assert turns(pipeline, step(600.0)) == WHOLE and not pipeline.why
    pipeline.forget("memory was freed")
    pipeline.forget()  # another sampling
    assert turns(pipeline, step(1000.0)) == WHOLE and not pipeline.why


def test_differences_are_kept_for_steps_of_one_kind_and_begin_anew_with_another_sampling() -> None:
    made = StepPipeline(ParallelPlan(ulysses=2, exchange_dtype="int4"))

    def kept(calls: list[Call]) -> Any:
        ((forward,),) = made.begin(calls, [0], count)
        assert forward.running == [0] and not made.why
        return forward.differences

    cond, uncond = kept(step(1000.0)), kept(step(1000.0, text=OTHER))
    assert cond is not None and cond is not uncond
    assert kept(step(900.0)) is cond and kept(step(900.0, text=OTHER)) is uncond
    assert kept(step(900.0, rows=10)) is not cond
    again = kept(step(1000.0))
    assert again is not cond and kept(step(900.0)) is again
    made.forget()
    assert kept(step(800.0)) is not again


def test_cond_and_uncond_in_turns_are_no_change(pipeline: StepPipeline) -> None:
    """As a sampler asks for them whose calls go one by one."""
    pipeline.forget()
    for timestep, wanted in ((1000.0, WHOLE), (900.0, WHOLE), (800.0, PATCHES), (700.0, PATCHES)):
        for text in (TEXT, OTHER):
            assert turns(pipeline, step(timestep, text=text)) == wanted and not pipeline.why


def test_after_a_step_back_the_next_ones_run_patch_by_patch(pipeline: StepPipeline) -> None:
    assert [turns(pipeline, step(timestep)) for timestep in (950.0, 940.0, 880.0)] == [WHOLE, PATCHES, PATCHES]


def test_the_way_that_timesteps_go_is_learned_where_models_differ_in_it(pipeline: StepPipeline) -> None:
    """As for a pipeline's own loop: Z-Image's timesteps rise."""
    pipeline.forget()
    pipeline.rises = None
    for timestep, wanted in ((0.0, WHOLE), (0.1, WHOLE), (0.2, PATCHES), (0.5, PATCHES), (0.9, PATCHES), (0.1, WHOLE)):
        assert turns(pipeline, step(timestep)) == wanted
    pipeline.forget()
    for timestep, wanted in ((1.0, WHOLE), (0.9, WHOLE), (0.5, PATCHES), (0.1, PATCHES), (0.9, WHOLE)):
        assert turns(pipeline, step(timestep)) == wanted


def test_two_kinds_of_steps_in_turns_keep_their_own_keys(pipeline: StepPipeline) -> None:
    """As perturbed attention guidance asks for them."""
    perturbed = {"patches_replace": {"attn1": {"middle": None}}}
    found = [
        turns(pipeline, step(timestep, **options)) for timestep in (700.0, 600.0, 500.0) for options in ({}, perturbed)
    ]
    assert found == [PATCHES, WHOLE, PATCHES, WHOLE, PATCHES, PATCHES]
    assert len(pipeline.kinds) == 2


def test_only_the_last_kinds_of_steps_are_kept(pipeline: StepPipeline) -> None:
    for rows in range(10, 10 + 2 * MOST_KINDS + 2, 2):
        turns(pipeline, step(700.0, rows=rows))
    assert len(pipeline.kinds) == MOST_KINDS


def test_latents_that_cannot_be_cut_into_patches_are_refused(pipeline: StepPipeline) -> None:
    with pytest.raises(RequestError, match="7×6"):
        turns(pipeline, step(700.0, rows=7))
    sound = [Call(([torch.zeros(1, 4, 8, 6), torch.zeros(1, 2, 3)], torch.tensor([700.0])), {})]
    with pytest.raises(RequestError, match="several parts"):
        turns(pipeline, sound)


def test_a_plan_without_patches_runs_every_step_whole_and_keeps_nothing() -> None:
    pipeline = StepPipeline(ParallelPlan(ulysses=2))
    ((forward,),) = pipeline.begin(step(700.0), [0], count)
    assert forward.running == [0] and forward.cache is None and not pipeline.kinds


@pytest.mark.parametrize("plan", [{"pipefusion": 2, "patches": 1}, {"cfg": 2}], ids=str)
def test_ranks_that_exchange_no_tokens_keep_no_differences(plan: dict[str, Any]) -> None:
    """They would take what nobody has sent for differences."""
    made = StepPipeline(ParallelPlan(**plan, exchange_dtype="int4"))
    for timestep in (1000.0, 900.0):
        video = Call((torch.zeros(1, 4, 3, 8, 6), torch.tensor([timestep])), {"context": TEXT})
        ((forward,),) = made.begin([video], [0], count)
        assert forward.differences is None
