"""A rank that computes for so long that it cannot answer is not taken for dead: its group lives on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import DIT, DirectGroup, source_of, wait_until
from worker.host.client import WorkerGroup
from worker.host.session import LOADING_TIMES
from worker.settings import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what a process does")

SILENCE_SECONDS = 2.0
HOLD_SECONDS = 3 * SILENCE_SECONDS  # and a rank is given up after LOADING_TIMES
DEADLINE = 300.0
VARIABLE = "TESTS_HOLD"
# Python runs it as it starts. In a rank, it waits for a file, and then holds the GIL by a loop in C alone.
SITE = f"""
import os, threading, time
from collections import deque
from functools import partial
from itertools import takewhile
from operator import gt
from pathlib import Path

def hold():
    while True:
        order = Path(os.environ["{VARIABLE}"], os.environ.get("RANK", ""))
        if order.is_file():
            order.unlink()
            until = time.monotonic() + {HOLD_SECONDS}
            deque(takewhile(partial(gt, until), iter(time.monotonic, None)), maxlen=0)
        time.sleep(0.05)

os.register_at_fork(after_in_child=lambda: threading.Thread(target=hold, daemon=True).start())
"""


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in it, named by a rank's number, makes that rank hold the GIL."""
    return tmp_path_factory.mktemp("orders")


@pytest.fixture(scope="module")
def direct(own_ranks: None, orders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectGroup]:
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(SITE)
    source = source_of(DIT, tmp_path_factory.mktemp("model"))
    group = WorkerGroup("cpu", tmp_path_factory.mktemp("logs"), Settings(silence_seconds=SILENCE_SECONDS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        patch.setenv(VARIABLE, str(orders))
        group.start(2)
    yield DirectGroup(group, DIT, source, ParallelPlan(ulysses=2))
    group.stop()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_holds_the_gil_in_a_long_loop_is_borne_and_goes_on(
    rank: int, direct: DirectGroup, orders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert SILENCE_SECONDS < HOLD_SECONDS < LOADING_TIMES * SILENCE_SECONDS
    direct.load()
    before, pids, order = direct.forward(16, 16), direct.pids(), orders / str(rank)

    def is_noticed() -> bool:
        return any(f"Rank {rank} has not answered for" in said for said in caplog.messages)

    order.touch()
    assert wait_until(lambda: is_noticed() or direct.group.status()["last_death"], DEADLINE)
    assert wait_until(lambda: direct.group.status()["state"] == "ready", DEADLINE)
    assert direct.group.status()["last_death"] is None
    assert torch.equal(direct.forward(16, 16), before)
    assert direct.pids() == pids
