"""diffusers' own loops under plans that keep something from step to step, or make two calls at the same time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parallel_backend.models import known_spec
from tests.support.cases import oracle
from tests.support.cases.library_cases import sd3_with_encoders
from tests.support.cases.own_loop_cases import INT4, LOOPS, LOOPS_OF_TWO, OWN_CALLS, PATCHES, LoopCase, scheduler_of
from tests.support.cases.references import relative_error
from tests.support.ranks.pool import RankPool

TOLERANCE = 1e-5
LOSSY = 0.02
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def runs(ranks: RankPool) -> dict[int, list[tuple[dict[str, Any], Tensors]]]:
    """By world size, what each rank found, and its latents."""
    return {world: ranks.run(world, "library.own_loop_ranks") for world in (4, 3, 2)}


@pytest.fixture(scope="module")
def told(runs: dict[int, list]) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    return [found for found, _ in runs[2]]


def by_oracle(case: LoopCase, *patches: int) -> torch.Tensor:
    """By a serial program. patches: how many, and the steps that run whole; all steps without them."""
    loop, family = LOOPS[case.loop], LOOPS[case.loop].model
    return oracle.sample(
        family.build(), known_spec(family.model_class), family.reference, scheduler_of(loop, case.scheduler),
        loop.noise(), loop.conditions, loop.negative, loop.guidance, *patches,
        patch=family.patch, timestep_scale=family.timestep_scale,
    )  # fmt: skip


@pytest.mark.parametrize("case", [*PATCHES, INT4], ids=str)
def test_what_a_pipelines_own_call_keeps_from_step_to_step_goes_with_it(case: LoopCase, runs: dict[int, list]) -> None:
    """PipeFusion's is that of the oracle. Four bits by themselves are 20 % off, and as differences less than 2 %."""
    _, found = runs[case.plan.world_size][0]
    got = found[str(case)]
    assert torch.equal(got, found[f"{case}, again"])
    error = relative_error(got, by_oracle(case))
    assert error > 10 * TOLERANCE  # it was kept
    if case is INT4:
        assert error < LOSSY
    else:
        assert relative_error(got, by_oracle(case, case.plan.patch_count, case.plan.sync_steps)) <= TOLERANCE


@pytest.mark.parametrize("name", LOOPS_OF_TWO)
def test_two_calls_of_a_step_run_side_by_side_only_where_both_are_known(name: str, told: list[dict[str, Any]]) -> None:
    """Else the prediction is right all the same, and the log says why."""
    found = [each[name] for each in told]
    *ran, why = LOOPS_OF_TWO[name]
    assert max(each["worst"] for each in found) <= TOLERANCE
    assert [each["ran"] for each in found] == ran
    assert [each["told"] for each in found] == [why, why]


@pytest.mark.parametrize("name", OWN_CALLS)
def test_a_pipelines_own_call_returns_what_the_plain_one_does(name: str, runs: dict[int, list]) -> None:
    call, start = OWN_CALLS[name], f"{name}, "
    expected = call.run(sd3_with_encoders())
    for rank, (_, latents) in enumerate(runs[2]):
        found = {key.removeprefix(start): each for key, each in latents.items() if key.startswith(start)}
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            wanted = value[2:] if rank and call.images == "first" else value  # of three pictures, it decodes the last
            assert relative_error(found[key].double(), wanted.double()) <= TOLERANCE


def test_each_rank_encodes_and_decodes_its_own_rows(told: list[dict[str, Any]]) -> None:
    """Of three prompts, without and with guidance, and of three or six pictures."""
    for name in ("arrays", "on the first rank", "with a shared VAE"):
        assert [(each[name]["text_encoder"], each[name]["decoder"]) for each in told] == [([2, 2], [2]), ([1, 1], [1])]
    assert [each["image to image"]["decoder"] for each in told] == [[3], [3]]
    assert [each["callbacks"]["text_encoder"] for each in told] == [[1, 1], [1, 1]]
