"""Ranks that start before a request asks for them: who asks finds them, or hears why there are none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import DIT, go_on, source_of, wait_until
from worker.errors import NoWorkerGroup, WorkerGroupError
from worker.host.client import WorkerGroup
from worker.settings import Settings

PLAN, ONE = ParallelPlan(ulysses=2).to_json(), ParallelPlan().to_json()
GOOD = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
SECONDS = 300.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return source_of(DIT, tmp_path_factory.mktemp("dit")).to_json()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ranks' interpreter, a script, so that a test can have it fail."""
    script = tmp_path_factory.mktemp("python") / "python"
    script.write_text(GOOD)
    script.chmod(0o755)
    return script


@pytest.fixture(scope="module")
def only_group(own_ranks: None, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerGroup]:
    group = WorkerGroup("cpu", tmp_path_factory.mktemp("group") / "logs", Settings(python=str(python)))
    yield group
    group.stop()


@pytest.fixture
def group(only_group: WorkerGroup) -> WorkerGroup:
    """Without ranks."""
    only_group.stop()
    return only_group


def starts(group: WorkerGroup) -> bool:
    return group.status()["state"] == "starting"


def test_a_request_waits_for_ranks_that_start_and_can_be_given_up_without_them(
    group: WorkerGroup, source: dict
) -> None:
    group.start_ahead(2, source)
    assert wait_until(lambda: starts(group), SECONDS)
    assert wait_until(lambda: group.status().get("starting", 0) > 0, SECONDS)

    def give_up() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        group.load(source, PLAN, 2, give_up)
    assert starts(group)
    group.start_ahead(2, source)  # asked for twice, they start once
    group.load(source, PLAN, 2, go_on)
    status = group.status()
    assert len(status["pids"]) == 2 and "starting" not in status
    group.start_ahead(1, source)
    group.start_ahead(2, source)
    with group.turn(go_on):
        assert group.status()["pids"] == status["pids"]


def test_ranks_that_start_are_stopped_and_who_waits_for_them_is_told(group: WorkerGroup, source: dict) -> None:
    group.start_ahead(2, source)
    assert wait_until(lambda: starts(group), SECONDS)

    def stop() -> None:
        if starts(group):
            group.stop()

    with pytest.raises(WorkerGroupError, match="stopped"):
        group.load(source, PLAN, 2, stop)
    assert group.status()["state"] == "stopped"


def test_no_start_is_tried_between_one_ahead_that_failed_and_a_restart(
    group: WorkerGroup, source: dict, python: Path
) -> None:
    """A start by hand fails again here, with its own exit code."""
    python.write_text("#!/bin/sh\nexit 7\n")
    try:
        group.start_ahead(1, source)
        assert wait_until(lambda: group.status()["state"] == "failed", SECONDS)
        python.write_text("#!/bin/sh\nexit 8\n")
        with pytest.raises(NoWorkerGroup, match="failed to start 3 times(.|\n)*exit code 8"):
            group.start(1)
    finally:
        python.write_text(GOOD)
    with pytest.raises(NoWorkerGroup, match="failed to start 3 times(.|\n)*restart the group"):
        group.load(source, ONE, 1, go_on)
    group.restarts.forgive()


def test_a_start_that_fails_twice_is_tried_again(group: WorkerGroup, source: dict, python: Path) -> None:
    tries = python.with_name("tries")
    python.write_text(f"#!/bin/sh\necho >> {tries}\n[ $(wc -l < {tries}) -gt 2 ] || exit 7\n{GOOD.splitlines()[1]}\n")
    try:
        group.load(source, ONE, 1, go_on)
    finally:
        python.write_text(GOOD)
    assert len(tries.read_text()) == 3 and not group.down and not group.status()["deaths"]


def test_a_start_that_takes_too_long_is_not_tried_again(own_ranks: None, tmp_path: Path, source: dict) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho >> {tmp_path / 'tries'}\nexec sleep 600\n")
    python.chmod(0o755)
    late = WorkerGroup("cpu", tmp_path / "logs", Settings(python=str(python), start_seconds=1.0))
    with pytest.raises(NoWorkerGroup, match=r"did not start in 1 s(.|\n)*start_seconds"):
        late.load(source, ONE, 1, go_on)
    assert len((tmp_path / "tries").read_text()) == 1
    late.stop()


def test_a_sampling_that_goes_on_is_not_disturbed(only_group: WorkerGroup, source: dict) -> None:
    group = only_group
    if len(group.status().get("pids", [])) != 1:  # as the test before this one leaves it
        group.stop()
    group.load(source, ONE, 1, go_on)
    pids = group.status()["pids"]
    with group.runs.run("5", "a model", ParallelPlan()):
        group.start_ahead(2, source)
        assert wait_until(lambda: not ahead(), SECONDS)
        assert group.status()["pids"] == pids
    group.start_ahead(2, source)
    assert wait_until(lambda: len(group.status().get("pids", [])) == 2, SECONDS)


def ahead() -> list[str]:
    """The threads that start ranks."""
    return [thread.name for thread in threading.enumerate() if thread.name == "paralleldit-ahead"]
