"""Ranks that are stuck in a first step, for which there is no pace: the group ends, and says where they wait."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from demo.host import REPOSITORY
from parallel_backend.errors import GroupError
from parallel_backend.groups.timeline import Timeline
from tests.support.group.direct_group import DIT, direct_on, wait_until
from worker.errors import WorkerGroupError
from worker.host import pace
from worker.host.client import WorkerGroup
from worker.launch.logs import collect_stacks
from worker.rank.job_groups import JobGroups
from worker.settings import Settings
from worker.wire.private_folder import FOLDER
from worker.wire.protocol import IN_BLOCKS

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


def test_a_first_step_in_which_nothing_moves_ends_with_the_stacks_of_the_ranks(
    own_ranks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is stopped, and the other waits for it. The heartbeat alone would be patient."""
    monkeypatch.setitem(pace.STILL_SECONDS, IN_BLOCKS, STILL)
    group = WorkerGroup("cpu", tmp_path / "logs", Settings(silence_seconds=600.0))
    try:
        direct = direct_on(group, tmp_path, DIT, ulysses=2)
        direct.load()
        stopped = direct.pids()[1]
        began = time.monotonic()
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(WorkerGroupError) as raised:
            direct.forward(16, 16)
        said = raised.value.explanation
        assert "of a first step" in said.cause and time.monotonic() - began < PATIENCE
        # Rank 0 waits for it in the relay, or in the first exchange if it was stopped while it waited for a request.
        assert "relay.py" in said.details or "ulysses.py" in said.details, said.details
        assert "rank 0:" in said.details and "rank 1, which did not answer:" in said.details
        direct.load()
        assert direct.forward(16, 16).isfinite().all()
    finally:
        group.stop()


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


def test_a_timeline_moves_at_the_begin_and_the_end_of_each_exchange() -> None:
    timeline = Timeline(CPU)
    with timeline.communication("send"):
        assert timeline.moves == 1
    assert timeline.moves == 2
