"""Weights that are fetched in a worker group: what goes wrong in a request leaves the next one right.

The reference is the same group with whole weights.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from parallel_backend.plan import HOST, SHARED, WHOLE, ParallelPlan
from tests.support.group.direct_group import SHORT, DirectGroup
from worker.errors import RequestRefused

SIZES = (16, 16)
SOME = 3  # of the model's four blocks
LONG = replace(SHORT, steps=200)
KINDS = pytest.mark.parametrize("kind", [SHARED, HOST])


@pytest.fixture(scope="module")
def right(two: DirectGroup) -> list[torch.Tensor]:
    """What whole weights give."""
    return both(under(two, WHOLE))


def under(direct: DirectGroup, weights: str, blocks: int = 0) -> DirectGroup:
    return direct.under(ulysses=2, weights=weights, weight_blocks=blocks)


def both(direct: DirectGroup) -> list[torch.Tensor]:
    return [direct.forward(*SIZES), direct.sample(*SIZES)]


def equal(got: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(got) == len(right) and all(map(torch.equal, got, right))


def at_step(number: int, act: Callable[[], None]) -> Callable[[], None]:
    """A check that acts when it has been asked so many times."""
    asked = itertools.count(1)
    return lambda: act() if next(asked) == number else None


@KINDS
def test_what_each_rank_has_of_fetched_weights_is_parked_and_comes_back(two: DirectGroup, kind: str) -> None:
    """Ranks that share weights out have others, where whole ones would be one copy for both."""
    right = both(under(two.in_memory(), WHOLE))
    direct = under(two.in_memory(), kind, SOME)
    for _ in range(2):
        direct.park()
        assert equal(both(direct), right)


# The gate has each kind, and each step.
@pytest.mark.parametrize(
    ("kind", "steps"),
    [(SHARED, 1), (HOST, 4), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((SHARED, 4), (HOST, 1)))],
)
def test_a_sampling_that_is_given_up_leaves_the_next_right(
    two: DirectGroup, right: list[torch.Tensor], kind: str, steps: int
) -> None:
    direct, pids = under(two, kind), two.pids()
    for _ in range(2):
        with pytest.raises(InterruptedError):
            direct.sample(*SIZES, call=LONG, check=at_step(steps, Mock(side_effect=InterruptedError)))
        assert equal(both(direct), right)
    assert two.pids() == pids


def test_ranks_that_read_each_others_weights_when_the_load_is_given_up_do_not_wait_for_one_another(
    two: DirectGroup, right: list[torch.Tensor]
) -> None:
    """They learn of it at different moments. So they read on to the end."""
    pids, deadline = under(two, SHARED).pids(), time.monotonic() + 60
    moved = replace(two, plan=ParallelPlan(ulysses=2, weights=HOST))

    def give_up_the_load() -> None:
        if two.group.session.operation == "load":
            raise InterruptedError

    def wait_for_the_end() -> None:
        assert time.monotonic() < deadline

    for _ in range(3):
        with pytest.raises(InterruptedError):
            moved.load(give_up_the_load)
        replace(two, plan=ParallelPlan(ulysses=2, weights=SHARED)).load(wait_for_the_end)
    assert equal(both(under(two, HOST)), right)
    assert two.pids() == pids


@KINDS
def test_a_refusal_leaves_the_next_right(two: DirectGroup, right: list[torch.Tensor], kind: str) -> None:
    direct = under(two, kind)
    latents, timestep, conditions = two.family.inputs(2, *SIZES)
    with pytest.raises(RequestRefused, match="does not cover"):  # in a block, while the next one's weights come
        direct.call(latents, timestep, conditions, attention_mask=torch.ones(2, 5))
    assert equal(both(direct), right)
    with pytest.raises(RequestRefused, match="The model failed"):
        direct.call(latents[:, :3], timestep, conditions)
    direct.load()
    assert equal(both(direct), right)
    with pytest.raises(RequestRefused, match="needs ranks that compute with the same weights"):
        replace(two, plan=ParallelPlan(pipefusion=2, patches=1, weights=SHARED)).load()
    assert equal(both(under(two, kind)), right)
