"""Where the ranks' time goes: timelines, the trace of all ranks, and what status and steps' events say of it."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import pytest
import torch

from parallel_backend.groups.timeline import COMMUNICATION, REQUEST, STEP, Timeline
from tests.support.group.direct_group import DIT, DirectGroup, direct_on, go_on, pass_of
from worker.host.client import WorkerGroup
from worker.wire.sampler_call import SamplerCall

RUN_STEPS = 4
STOP_SECONDS = 1.5
LONG_RUN_STEPS = 60  # a run that still goes on when the process that is told of its first step is slow to stop a rank
EXACT = 2e-3  # microseconds: of two sums of nanoseconds
Event = dict[str, Any]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none here")
def test_on_a_gpu_spans_are_of_its_time_and_not_of_the_host_that_runs_ahead() -> None:
    timeline = Timeline(torch.device("cuda"))
    with timeline.request("sample"), timeline.step("step 1"):
        torch.cuda._sleep(10_000_000)
        with timeline.communication("all_gather"):
            torch.cuda._sleep(100_000_000)
    wait, step, request = timeline.spans()
    assert request.begin <= step.begin <= wait.begin <= wait.end <= step.end <= request.end
    ((length, waited),) = timeline.steps
    assert 0.8 < waited / length < 1
    assert 5 < (wait.end - wait.begin) / (wait.begin - step.begin) < 20


@pytest.fixture(scope="module")
def direct(group_of_two: WorkerGroup, tmp_path_factory: pytest.TempPathFactory) -> DirectGroup:
    return direct_on(group_of_two, tmp_path_factory.mktemp("timeline"), DIT, ulysses=2)


def sample(group: WorkerGroup, on_event=lambda event: None, steps: int = RUN_STEPS) -> list[Event]:
    latents, _, conditions = DIT.inputs(2, 16, 16)
    call, events = SamplerCall(scheduler="Euler", steps=steps, guidance=3.0), []

    def on_step(event: Event, _denoised: torch.Tensor | None) -> None:
        events.append(event)
        on_event(event)

    passes = [pass_of(DIT, conditions, branch) for branch in (0, 1)]
    group.sample(call, {"noise": latents}, passes, go_on, on_step)
    return events


def rows(group: WorkerGroup) -> dict[int, list[Event]]:
    """The trace's events by rank, checked for what the format asks of each."""
    trace = json.loads(group.trace())
    by_rank: dict[int, list[Event]] = {}
    for event in trace["traceEvents"]:
        assert {"name", "cat", "ph", "ts", "pid", "tid"} <= event.keys()
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0
            by_rank.setdefault(event["tid"], []).append(event)
        else:
            assert event["ph"] == "M" and event["args"]["name"]
    named = {event["tid"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert by_rank.keys() <= named
    return by_rank


def last_run(events: list[Event], operation: str = "sample") -> tuple[list[Event], list[list[Event]]]:
    """The steps of a rank's last request of this kind, and the communication in each."""
    request = [event for event in events if event["cat"] == REQUEST and event["name"] == operation][-1]
    steps = [event for event in events if event["cat"] == STEP and lies_in(event, request)]
    waits = [event for event in events if event["cat"] == COMMUNICATION]
    return steps, [[wait for wait in waits if lies_in(wait, step)] for step in steps]


def lies_in(inner: Event, outer: Event) -> bool:
    end, outer_end = inner["ts"] + inner["dur"], outer["ts"] + outer["dur"]
    return inner["ts"] >= outer["ts"] - EXACT and end <= outer_end + EXACT


@pytest.mark.parametrize(
    "plan",
    [{"ulysses": 2}, {"ring": 2}, {"cfg": 2}, {"pipefusion": 2, "patches": 2}],
    ids=lambda plan: next(iter(plan)),
)
def test_a_steps_communication_and_computation_add_up_to_its_wall_time_on_every_rank(
    plan: dict[str, int], direct: DirectGroup
) -> None:
    direct.under(**plan)
    try:
        sample(direct.group)
        by_rank = rows(direct.group)
    finally:
        direct.load()
    assert by_rank.keys() == {0, 1}
    for events in by_rank.values():
        steps, waits = last_run(events)
        assert [step["name"] for step in steps] == [f"step {number}" for number in range(1, RUN_STEPS + 1)]
        for step, inside in zip(steps, waits, strict=True):
            waited = sum(wait["dur"] for wait in inside)
            assert inside and 0 < waited < step["dur"]
            assert 1e6 * step["args"]["communication"] == pytest.approx(waited, abs=EXACT)
            assert 1e6 * step["args"]["computation"] == pytest.approx(step["dur"] - waited, abs=EXACT)


def test_a_rank_that_stands_still_is_communication_to_the_other(direct: DirectGroup) -> None:
    group, (_, stopped) = direct.group, direct.pids()

    def stop_for_a_moment(event: Event) -> None:
        if event["step"] == 1:
            os.kill(stopped, signal.SIGSTOP)
            threading.Timer(STOP_SECONDS, os.kill, [stopped, signal.SIGCONT]).start()

    events = sample(group, stop_for_a_moment, LONG_RUN_STEPS)
    steps, _ = last_run(rows(group)[0])
    parts = [step["args"] for step in steps]
    longest = max(parts, key=lambda step: step["communication"])
    assert longest["communication"] >= STOP_SECONDS / 2 > longest["computation"]
    told = max(events, key=lambda event: event["communication"])
    assert told["communication"] >= STOP_SECONDS / 2 and told["seconds"] >= told["communication"]
    assert len(parts) == LONG_RUN_STEPS
