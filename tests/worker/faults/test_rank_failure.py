"""A rank that fails while the others wait for it is an error on all of them within seconds, and never a hang."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demo.host import REPOSITORY
from tests.support.group.direct_group import wait_until
from worker.launch.process import is_alive

# The gate kills a rank of a worker group while another waits for it: `test_fetched_weights_in_a_group.py`.
pytestmark = pytest.mark.slow
DEADLINE = 20.0
PLANS = {
    "ulysses": {"ulysses": 2},
    "ring": {"ring": 2},
    "pipefusion": {"pipefusion": 2, "patches": 3},
    "pipefusion × ulysses": {"pipefusion": 2, "patches": 3, "ulysses": 2},
}
# torchrun ends the others itself once it looks; so it does not, and each has to see the failure on its own.
UNWATCHED = 3600.0
PATIENCE = 120.0


def world_size(plan: dict[str, int]) -> int:
    return plan.get("pipefusion", 1) * plan.get("ulysses", 1) * plan.get("ring", 1)


def launch(plan: dict[str, int], how: str, out: Path, watches_every: float) -> subprocess.Popen:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size(plan)}"]
    ranks = ["-m", "tests.support.ranks.failing_ranks", json.dumps(plan), how, str(out)]
    return subprocess.Popen(
        [sys.executable, *torchrun, f"--monitor-interval={watches_every}", *ranks],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def read(path: Path) -> dict:
    """A rank's report, once it is there and whole; empty until then."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


@pytest.mark.parametrize("how", ["raise", "kill"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_rank_that_fails_in_a_collective_is_an_error_on_every_rank(
    plan: dict[str, int], how: str, own_ranks: None, tmp_path: Path
) -> None:
    reports = [tmp_path / f"{rank}.json" for rank in range(world_size(plan))]
    process = launch(plan, how, tmp_path, UNWATCHED)
    try:
        wait_until(lambda: read(reports[-1]), PATIENCE)
        wait_until(lambda: all(map(read, reports)), DEADLINE)
    finally:
        process.terminate()
        _, log = process.communicate(timeout=PATIENCE)
    *others, failed = map(read, reports)
    assert failed, log[-4000:]
    for rank, seen in enumerate(others):
        assert "onnection" in seen.get("error", ""), f"rank {rank} saw {seen or 'nothing'}\n{log[-4000:]}"
        assert seen["at"] - failed["at"] <= DEADLINE
    assert not any(is_alive(seen["pid"]) for seen in (failed, *others))


def test_torchrun_ends_the_group_within_the_deadline(own_ranks: None, tmp_path: Path) -> None:
    process = launch(PLANS["ulysses"], "kill", tmp_path, watches_every=0.1)
    _, log = process.communicate(timeout=120)
    ended = time.time()
    assert process.returncode
    assert ended - read(tmp_path / "1.json")["at"] <= DEADLINE, log[-4000:]
