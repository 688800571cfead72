"""A group that dies is started again, with its model; one that keeps dying is left down, and says why."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import DIT, DirectGroup, go_on, source_of, wait_until
from worker.comfyui.source import HostSource
from worker.errors import WorkerGroupError
from worker.host.client import WorkerGroup
from worker.host.restarts import WINDOW_SECONDS, Restarts
from worker.launch import process
from worker.settings import Settings
from worker.wire.private_folder import EXPECTED

PLAN, ONE_OF_TWO = ParallelPlan(ulysses=2), ParallelPlan()
DEADLINE = 300.0
PR_SET_CHILD_SUBREAPER = 36


def test_restarts_are_bounded_in_a_window_and_their_pauses_grow() -> None:
    now = [0.0]
    restarts = Restarts(3, clock=lambda: now[0])
    pauses = []
    for _ in range(3):
        restarts.note_death()
        assert restarts.seconds_left() == 0
        pauses.append(restarts.pause(after_death=True))
        now[0] += 10
    assert pauses == [0.0, 1.0, 4.0]
    restarts.note_death()
    assert restarts.seconds_left() == WINDOW_SECONDS - 30, "when the first death is ten minutes old"
    now[0] = WINDOW_SECONDS
    assert restarts.seconds_left() == 0
    restarts.note_death()
    assert restarts.seconds_left() > 0
    restarts.forgive()
    assert restarts.seconds_left() == 0


def test_pages_may_ask_for_the_deaths_at_the_moment_at_which_one_is_forgotten() -> None:
    """Another thread asks between this one's look at the clock and its answer."""
    now, others = [0.0], []

    def clock() -> float:
        while others:
            others.pop()()
        return now[0]

    restarts = Restarts(1, clock)
    restarts.note_death()
    now[0] = WINDOW_SECONDS - 1
    restarts.note_death()
    now[0] = WINDOW_SECONDS
    others.append(restarts.count)
    assert restarts.count() == 1
    assert restarts.count() == 1, "the second death is a second old"


@pytest.fixture(scope="module")
def group(own_ranks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerGroup]:
    """One for all: a start takes longer than most tests. It forgives one death, and `load` forgets those before."""
    group = WorkerGroup("cpu", tmp_path_factory.mktemp("logs"), Settings(silence_seconds=3.0, restarts=1))
    yield group
    group.stop()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> HostSource:
    return source_of(DIT, tmp_path_factory.mktemp("model"))


@pytest.fixture
def load(group: WorkerGroup, source: HostSource) -> Callable[[], torch.Tensor]:
    group.restarts.forgive()
    return loading(group, source)


def loading(group: WorkerGroup, source: HostSource, plan: ParallelPlan = PLAN) -> Callable[[], torch.Tensor]:
    """Loads a tiny model, and runs it once."""
    direct = DirectGroup(group, DIT, source, plan)

    def run() -> torch.Tensor:
        direct.load()
        direct.group.patch("", lambda: ({"patches": {}, "files": []}, {}), go_on)
        return direct.forward(16, 16, rows=1).clone()

    return run


def test_a_group_that_dies_while_idle_comes_back_by_itself_with_its_model(
    group: WorkerGroup, source: HostSource
) -> None:
    """Under the plan of before, of which the rank that dies was not."""
    group.start(2)
    load = loading(group, source, ONE_OF_TWO)
    before = load()
    pids = group.status()["pids"]
    os.kill(pids[1], signal.SIGKILL)
    assert wait_until(lambda: group.status()["state"] != "ready", DEADLINE)
    assert wait_until(
        lambda: (status := group.status())["state"] == "ready" and status["counts"].get("load") == 1, DEADLINE
    )
    status = group.status()
    assert len(status["pids"]) == 2 and not set(status["pids"]) & set(pids)
    assert f"process {pids[1]}) was killed by SIGKILL" in status["last_death"]
    assert status["deaths"] == 1
    expected = group.session.process.environment[EXPECTED]
    assert json.loads(expected) == source.to_json(), "the ranks import for it as they start"
    assert torch.equal(load(), before)
    assert group.status()["counts"]["load"] == 1, "the model was there"
    group.dismiss()
    assert group.status()["last_death"] is None


def test_a_stopped_rank_is_taken_for_dead_and_a_group_that_keeps_dying_is_left_down_and_says_why(
    group: WorkerGroup, load: Callable[[], torch.Tensor]
) -> None:
    before = load()
    for rank in (1, 0):
        os.kill(group.status()["pids"][rank], signal.SIGSTOP)
        with pytest.raises(WorkerGroupError, match=rf"Rank {rank} .*(no sign of life|not answered) for 3 s"):
            load()
        if rank:
            assert torch.equal(load(), before)
    assert wait_until(lambda: group.status()["state"] == "failed", DEADLINE)
    with pytest.raises(WorkerGroupError, match=r"died 2 times in ten minutes(.|\n)*for 3 s"):
        load()
    group.restart(2)
    assert group.status()["state"] == "ready"
    assert torch.equal(load(), before)


def test_ranks_that_cannot_be_started_are_an_error_at_once_and_leave_nothing(own_ranks: None, tmp_path: Path) -> None:
    group = WorkerGroup("cpu", tmp_path / "logs", Settings(python=str(tmp_path / "no-python")))
    with pytest.raises(WorkerGroupError, match="cannot be started.*no-python"):
        group.load({}, PLAN.to_json(), 2, go_on)
    assert group.status()["state"] == "failed"
    assert group.session is None


def test_an_answer_that_nobody_waits_for_holds_up_no_later_request(
    group: WorkerGroup, source: HostSource, load: Callable[[], torch.Tensor]
) -> None:
    """Larger than the sockets hold, both: the answer that was given up, and the request after it."""
    before, direct = load(), DirectGroup(group, DIT, source, PLAN)
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        group.session.job_channel.connection.setsockopt(socket.SOL_SOCKET, buffer, 4096)
    latents, timestep, conditions = DIT.inputs(64, 64, 64)
    large = torch.zeros_like(latents)

    def interrupt() -> None:
        if group.session.operation == "call":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        direct.call(large, timestep, conditions, interrupt)
    result = direct.call(large, timestep, conditions)
    assert result.shape == large.shape
    assert torch.equal(load(), before)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process but init takes over orphans")
def test_a_stop_does_not_wait_until_somebody_reaps_the_ranks(
    group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container, whoever is process 1 may take its time, or never do it. Here, that is this process."""
    monkeypatch.setattr(process, "GONE_SECONDS", DEADLINE)
    group.start(2)
    pids = group.status()["pids"]
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert not prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        group.stop()
        assert [psutil.Process(pid).status() for pid in pids] == [psutil.STATUS_ZOMBIE] * 2
    finally:
        assert not prctl(PR_SET_CHILD_SUBREAPER, 0)
        for pid in pids:
            os.waitpid(pid, 0)
