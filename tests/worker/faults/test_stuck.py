"""Ranks that are stuck: the group ends, and says where they wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from demo.host import REPOSITORY
from parallel_backend.errors import GroupError
from parallel_backend.groups.timeline import Timeline
from tests.support.group.direct_group import DIT, DirectGroup, direct_group, wait_until
from worker.errors import WorkerGroupError
from worker.host import session
from worker.launch.logs import collect_stacks
from worker.rank.job_groups import JobGroups
from worker.settings import Settings
from worker.wire.private_folder import FOLDER
from worker.wire.protocol import IN_BLOCKS, ONCE

STILL, PATIENCE = 2.0, 60.0
CPU = torch.device("cpu")
# A thread that never lets go of the GIL: a regular expression that takes for ever.
BUSY = """
import re
from worker.launch.logs import open_log
open_log()
print("begun", flush=True)
def find_nothing():
    re.match(r"(a+)+$", "a" * 64 + "b")
find_nothing()
"""


def end_after(seconds: float) -> Callable[[], None]:
    """A check that gives the request up after so many seconds."""
    deadline = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError

    return check


@pytest.fixture
def direct(own_ranks: None, tmp_path: Path) -> Iterator[DirectGroup]:
    """A group for which the heartbeat alone would be patient."""
    with direct_group(tmp_path, DIT, Settings(silence_seconds=600.0), ulysses=2) as direct:
        yield direct


@pytest.mark.parametrize("ask", [lambda it: it.forward(16, 16), lambda it: it.under(ring=2)], ids=["step", "load"])
def test_a_step_or_load_in_which_nothing_moves_ends_with_the_stacks_of_the_ranks(
    ask: Callable[[DirectGroup], Any], direct: DirectGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is stopped, and the other waits for it."""
    for exchanges in (IN_BLOCKS, ONCE):
        monkeypatch.setitem(session.STILL_SECONDS, exchanges, STILL)
    began = time.monotonic()
    os.kill(direct.pids()[1], signal.SIGSTOP)
    with pytest.raises(WorkerGroupError) as raised:
        ask(direct)
    said = raised.value.explanation
    assert "no rank has sent" in said.cause and time.monotonic() - began < PATIENCE
    # Rank 0 waits for it in the relay, or in the first exchange if it was stopped while it waited for a request.
    assert any(file in said.details for file in ("relay.py", "ulysses.py", "mesh.py")), said.details
    assert "rank 0:" in said.details and "rank 1, which did not answer:" in said.details
    direct.load()
    assert direct.forward(16, 16).isfinite().all()


def test_a_step_that_is_stuck_ends_the_group_though_its_request_was_cancelled(
    direct: DirectGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request would wait for its reply without end."""
    direct.forward(16, 16)
    monkeypatch.setitem(session.STILL_SECONDS, IN_BLOCKS, STILL)
    os.kill(direct.pids()[1], signal.SIGSTOP)
    inputs = DIT.inputs(2, 16, 16)
    with pytest.raises(TimeoutError):
        direct.call(*inputs, end_after(STILL / 4))
    with pytest.raises(WorkerGroupError, match="no rank has sent"):
        direct.call(*inputs, end_after(PATIENCE))
    direct.load()
    assert direct.forward(16, 16).isfinite().all()


def test_a_rank_tells_its_stacks_while_a_thread_holds_the_gil(tmp_path: Path) -> None:
    environment = {FOLDER: str(tmp_path), "PARALLELDIT_LOG_MEGABYTES": "8", "RANK": "0"}
    process = subprocess.Popen([sys.executable, "-c", BUSY], cwd=REPOSITORY, env=os.environ | environment)
    try:
        log = tmp_path / "rank-0.log"
        assert wait_until(lambda: log.exists() and "begun" in log.read_text(), PATIENCE)
        assert "find_nothing" in collect_stacks(tmp_path, [process.pid])
    finally:
        process.kill()
        process.wait()


def test_a_result_after_an_error_of_the_watchdog_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has aborted the group; later kernels have computed with garbage."""
    monkeypatch.setattr("worker.rank.job_groups.dist.get_process_group_ranks", lambda _group: [0, 1])
    error = SimpleNamespace(name="SUCCESS")
    backend = SimpleNamespace(get_error=lambda: error)
    group = SimpleNamespace(group_name="1", _get_backend=lambda _device: backend)
    groups = JobGroups(torch.device("cuda", 0), Timeline(CPU))
    groups.mesh = SimpleNamespace(groups=lambda: [group])  # pyright: ignore[reportAttributeAccessIssue]
    groups.check()
    error.name = "TIMEOUT"
    with pytest.raises(GroupError, match=r"ranks \[0, 1\] failed \(TIMEOUT\)"):
        groups.check()


def test_groups_that_are_built_meanwhile_stop_no_cut() -> None:
    """The heartbeat's thread cuts a job that another rank has broken off, while this rank builds further groups."""
    groups = JobGroups(CPU, Timeline(CPU))

    class Built:
        @property
        def group(self) -> Any:
            groups.worlds["cpu", len(groups.worlds)] = Built()  # pyright: ignore[reportArgumentType]
            return SimpleNamespace(group_name="1")

    groups.worlds["cpu", 0] = Built()  # pyright: ignore[reportArgumentType]
    assert len(groups._groups()) == 1
