"""Ranks that start before a request asks for them: who asks finds them, or hears why there are none."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.loading import ModelSource
from tests.support.cases.families import FAMILIES
from tests.support.group.direct_group import go_on, wait_until
from worker.errors import WorkerGroupError
from worker.host.client import WorkerGroup
from worker.host.runs import RunPlan
from worker.settings import Settings

PLAN = ParallelPlan(ulysses=2).to_json()
SECONDS = 60.0


@pytest.fixture
def source(tmp_path: Path) -> dict:
    family = FAMILIES["dit"]
    weights = family.save(tmp_path / "dit") / "diffusion_pytorch_model.safetensors"
    return ModelSource(family.model_class, family.config, (str(weights),)).to_json()


@pytest.fixture
def group(own_ranks: None, tmp_path: Path) -> Iterator[WorkerGroup]:
    group = WorkerGroup("cpu", tmp_path / "logs")
    yield group
    group.stop()


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
    group.load(source, PLAN, 2, go_on)


@pytest.mark.parametrize("how", ["waited for", pytest.param("met later", marks=pytest.mark.slow), "started by hand"])
def test_why_ranks_did_not_start_is_told_to_who_waited_and_tried_again_for_who_comes_later(
    source: dict, own_ranks: None, tmp_path: Path, how: str
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 2\nexit 7\n")
    python.chmod(0o755)
    group = WorkerGroup("cpu", tmp_path / "logs", Settings(python=str(python)))
    began = time.monotonic()
    group.start_ahead(2, source)
    assert wait_until(lambda: starts(group), SECONDS)
    if how == "waited for":
        with pytest.raises(WorkerGroupError, match="did not start"):
            group.load(source, PLAN, 2, go_on)
        assert (tmp_path / "logs").is_dir() and time.monotonic() - began < SECONDS
        assert group.supervisor.failed_ahead is None, "told once"
    else:
        assert wait_until(lambda: group.status()["state"] == "failed", SECONDS)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    try:
        if how == "started by hand":
            group.start(2, go_on)
        else:
            group.load(source, PLAN, 2, go_on)
        assert group.status()["state"] == "ready"
    finally:
        group.stop()


def test_a_sampling_that_goes_on_is_not_disturbed(group: WorkerGroup, source: dict) -> None:
    group.load(source, ParallelPlan().to_json(), 1, go_on)
    pids = group.status()["pids"]
    with group.runs.run("5", "a model", RunPlan("one rank", {})):
        group.start_ahead(2, source)
        assert wait_until(lambda: not ahead(), SECONDS)
        assert group.status()["pids"] == pids
    group.start_ahead(2, source)
    assert wait_until(lambda: len(group.status().get("pids", [])) == 2, SECONDS)


def ahead() -> list[str]:
    """The threads that start ranks."""
    return [thread.name for thread in threading.enumerate() if thread.name == "paralleldit-ahead"]
