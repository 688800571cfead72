"""A run ends when its group is stopped, and tells what a usual step took."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from parallel_backend.plan import ParallelPlan
from worker.errors import Explanation, WorkerGroupError
from worker.host.client import WorkerGroup
from worker.host.runs import Runs, pick_usual_step
from worker.wire.operations import CALL

ALONE, TWO = ParallelPlan(), ParallelPlan(cfg=2)


def test_a_stop_within_a_step_ends_the_run_with_that_reason(tmp_path: Path) -> None:
    """A step checks its model, then computes it. A stop may come between the two."""
    group, nothing = WorkerGroup("cpu", tmp_path), torch.zeros(1)
    with (
        pytest.raises(WorkerGroupError, match="It was stopped"),
        group.runs.run("3", "a model", ALONE),
        group.turn(lambda: None),
    ):
        group.stop()
        group.call([((nothing, nothing), {})], lambda: None)


def test_a_death_between_two_steps_ends_the_run_and_one_before_its_first_step_does_not() -> None:
    runs = Runs(threading.Event())
    with runs.run("3", "a model", TWO, "a class"):
        runs.died(Explanation("Rank 1 was killed."))
        runs.check_ended()
        runs.step(CALL.name, 0.1, 0.0)
        runs.died(Explanation("Rank 1 was killed."))
        with pytest.raises(WorkerGroupError, match=r"between two steps\. Rank 1 was killed"):
            runs.check_ended()
    with runs.run("3", "a model", TWO, "a class"):
        runs.check_ended()


def test_steps_that_run_whole_say_nothing_of_what_a_lossy_plan_takes() -> None:
    steps = [(9.0, 0.1), (4.0, 0.2), (4.1, 0.3), (1.0, 0.4), (1.2, 0.5), (1.1, 0.6)]
    assert pick_usual_step(steps) == 1.2
    assert pick_usual_step(steps, 3) == 1.1
    assert pick_usual_step(steps, len(steps)) is None
    assert pick_usual_step(steps[:1]) == 9.0, "of the first step, if there is no other"
