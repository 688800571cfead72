"""Weights that are fetched in a worker group: what goes wrong in a request leaves the next one right.

The reference is the same group with whole weights.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from parallel_backend.plan import HOST, SHARED, WHOLE, ParallelPlan
from tests.support.group.direct_group import (
    FLUX,
    FLUX_LAYER,
    SHORT,
    DirectGroup,
    direct_on,
    take_for_gpus,
)
from worker.errors import RequestRefused, WorkerGroupError
from worker.host.client import WorkerGroup

SIZES = (16, 16)
SOME = 3  # of the model's four blocks
SCALES = (0.0, 0.1, -0.3, 0.0)  # of patches; without a scale, none
LONG = replace(SHORT, steps=200)
KINDS = pytest.mark.parametrize("kind", [SHARED, HOST])


@pytest.fixture(scope="module")
def two(group_of_two: WorkerGroup, tmp_path_factory: pytest.TempPathFactory) -> DirectGroup:
    return direct_on(group_of_two, tmp_path_factory.mktemp("two"), FLUX, ulysses=2)


@pytest.fixture(scope="module")
def right(two: DirectGroup) -> list[torch.Tensor]:
    """What whole weights give."""
    return both(under(two, WHOLE))


def under(direct: DirectGroup, weights: str, blocks: int = 0, ring: bool = False) -> DirectGroup:
    degrees = {"ring": 2} if ring else {"ulysses": 2}
    changed = replace(direct, plan=ParallelPlan(**degrees, weights=weights, weight_blocks=blocks))
    changed.load()
    return changed


def both(direct: DirectGroup) -> list[torch.Tensor]:
    return [direct.forward(*SIZES), direct.sample(*SIZES)]


def equal(got: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(got) == len(right) and all(map(torch.equal, got, right))


def at_step(number: int, act: Callable[[], None]) -> Callable[[], None]:
    """A check that acts when it has been asked so many times."""
    asked = itertools.count(1)
    return lambda: act() if next(asked) == number else None


def give_up() -> None:
    raise InterruptedError


def test_weights_go_from_one_place_to_another_and_stay_what_they_are(
    two: DirectGroup, right: list[torch.Tensor]
) -> None:
    """Without the files, but for who loads anew; also when the group let go of them in between."""
    other = both(under(two, WHOLE, ring=True))
    weights = Path(two.source.files[0])
    away = weights.rename(weights.with_suffix(".away"))
    try:
        for kind, blocks in ((SHARED, 0), (HOST, SOME), (SHARED, SOME), (WHOLE, 0), (HOST, 0), (SHARED, 1)):
            assert equal(both(under(two, kind, blocks)), right), (kind, blocks)
            told = two.group.status()["weights"]
            assert told["kind"] == kind
            if kind != WHOLE:
                assert told["blocks"] == (blocks or 4) and 0 < told["kept"] and told["fetched"] > 0
            assert equal(both(under(two, kind, blocks, ring=True)), other), (kind, blocks)
    finally:
        away.rename(weights)
    for kind in (SHARED, HOST):
        two.group.park(unload=True)
        assert equal(both(under(two, kind, SOME)), right)


@KINDS
def test_what_each_rank_has_of_fetched_weights_is_parked_and_comes_back(
    two: DirectGroup, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that share weights out have others, where whole ones would be one copy for both."""
    in_memory = replace(
        two, source=replace(two.source, dtype="bfloat16", cast="float32")
    )  # and not in the file's pages, which stay
    right = both(under(in_memory, WHOLE))
    direct = under(in_memory, kind, SOME)
    for _ in range(2):
        with monkeypatch.context() as patched:
            take_for_gpus(patched, two.group)  # on the CPU, nothing would be won by it
            two.group.park()
        assert two.group.status()["state"] == "parked"
        assert equal(both(direct), right)


@KINDS
def test_patches_reach_fetched_weights_and_come_off_exactly(two: DirectGroup, kind: str) -> None:
    def patched(direct: DirectGroup, scale: float) -> torch.Tensor:
        direct.patch(FLUX_LAYER, scale)
        return direct.forward(*SIZES)

    two.group.park(unload=True)
    right = [patched(under(two, WHOLE), scale) for scale in SCALES]
    two.group.park(unload=True)
    direct = under(two, kind)
    assert equal([patched(direct, scale) for scale in SCALES], right)
    assert not right[0].equal(right[1]) and not right[1].equal(right[2])


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
            direct.sample(*SIZES, call=LONG, check=at_step(steps, give_up))
        assert equal(both(direct), right)
    assert two.pids() == pids


@KINDS
def test_a_load_that_is_given_up_leaves_the_next_right(two: DirectGroup, right: list[torch.Tensor], kind: str) -> None:
    direct = replace(two, plan=ParallelPlan(ulysses=2, weights=kind))

    def give_up_while_it_loads() -> None:
        session = two.group.session
        if session and session.operation == "load":
            raise InterruptedError

    for _ in range(2):
        two.group.park(unload=True)
        with pytest.raises(InterruptedError):
            direct.load(give_up_while_it_loads)
        direct.load()
        assert equal(both(direct), right)


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


@KINDS
def test_fewer_rows_than_ranks_are_served_by_those_without(two: DirectGroup, kind: str) -> None:
    def one_row(weights: str) -> torch.Tensor:
        direct = replace(two, plan=ParallelPlan(dp=2, weights=weights))
        direct.load()
        return direct.forward(*SIZES, rows=1)

    assert one_row(kind).equal(one_row(WHOLE))
    assert one_row(kind).equal(one_row(kind))


@pytest.mark.skipif(sys.platform != "linux", reason="stops a process")
@pytest.mark.parametrize("kind", [SHARED, pytest.param(HOST, marks=pytest.mark.slow)])
def test_a_rank_that_is_killed_while_another_waits_for_its_weights_costs_that_request(
    two: DirectGroup, right: list[torch.Tensor], kind: str
) -> None:
    direct = under(two, kind)
    pids = direct.pids()

    def kill() -> None:
        os.kill(pids[1], signal.SIGSTOP)  # in the middle of a step: rank 0 comes to wait for it
        time.sleep(0.3)
        os.kill(pids[1], signal.SIGKILL)

    with pytest.raises(WorkerGroupError, match="SIGKILL"):
        direct.sample(*SIZES, call=LONG, check=at_step(20, kill))
    direct.load()
    assert equal(both(direct), right)
    assert not set(pids) & set(direct.pids())
    two.group.supervisor.restarts.forgive()
