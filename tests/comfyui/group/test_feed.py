"""What ComfyUI's server says of a worker group: to the editor's panel as it happens and later; its status, its timeline
and its logs."""

from __future__ import annotations

import json
import urllib.error
from dataclasses import replace

import pytest

from demo.host import ComfyHost, PromptError
from tests.support.host.faults import spaced
from tests.support.host.graphs import Job, ask, cancel, groups, latents, post, ranks, status

JOB = Job("tiny-dit", "3", seed=5, steps=60)


def follow(host: ComfyHost, job: Job) -> list[dict]:
    """Runs a prompt; what the panel's events said meanwhile."""
    told = []
    host.run(
        spaced(job).prompt(),
        on_event=lambda event: told.append(event["data"]) if event["type"] == "paralleldit.group" else None,
    )
    return told


@pytest.mark.parametrize(("scheduler", "operation"), [("Euler", "sample"), (None, "call")])
def test_a_run_is_told_of_step_by_step(scheduler: str | None, operation: str, host: ComfyHost) -> None:
    steps = 100  # a second or more: a status is told a few times in one, and may find the ranks between two forwards
    told = follow(host, Job("tiny-dit", "3", seed=5, steps=steps, scheduler=scheduler))
    assert "running" in {run["state"] for event in told for run in event["runs"]}
    group = groups(host)[0]
    run, count = group["runs"][0], len(group["status"]["pids"])
    made = [each["made"] for event in told for each in event["runs"] if each["id"] == run["id"]]
    assert made and made == sorted(made)
    assert count >= 2, "it may have a part of the ranks"
    assert run["state"] == "done" and run["operation"] == operation
    assert run["made"] == len(run["steps"]) == steps
    assert run["plan"] == "cfg=2" and (run["model"], run["model_class"]) == ("tiny-dit", "DiT")
    assert run["seconds"] > sum(seconds for seconds, _ in run["steps"])
    assert [[*each.values()] for each in group["status"]["devices"]] == [[None, "cpu", 0]] * count
    for seconds, communication in run["steps"]:
        assert 0 < communication < seconds < 10
    assert [memory["total"] > memory["resident"] > 0 for memory in group["status"]["memory"]] == [True] * count


def test_a_run_that_is_interrupted_or_refused_says_so(host: ComfyHost) -> None:
    cancel(host, spaced(Job("tiny-dit", "3", seed=5, steps=5000)).prompt(), at=2)
    assert groups(host)[0]["runs"][0]["state"] == "cancelled"
    with pytest.raises(PromptError):
        host.run(spaced(Job("tiny-dit", "3", width=136, plan={"pipefusion": 2})).prompt())  # no whole patches
    assert groups(host)[0]["runs"][0]["state"] == "failed"


@pytest.mark.parametrize("scheduler", ["Euler", None])
def test_a_park_during_a_job_waits_for_it(scheduler: str | None, host: ComfyHost) -> None:
    prompt_id = host.queue(spaced(replace(JOB, scheduler=scheduler)).prompt())
    parked = []

    def park(event: dict) -> None:
        if event["type"] == "progress" and event["data"]["value"] >= 2 and not parked:
            parked.append(post(host, "/paralleldit/park"))

    entry = host.wait(prompt_id, on_event=park)
    assert entry["status"]["completed"] and parked
    assert "model" not in status(host)
    assert groups(host)[0]["runs"][0]["made"] == JOB.steps


def test_another_group_than_there_can_be_is_named(host: ComfyHost) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(host, "/paralleldit/park?group=9")


def test_the_host_serves_status_trace_and_logs_and_none_of_them_by_post(host: ComfyHost) -> None:
    latents(host, Job("tiny-dit", plan={"ulysses": 2}, scheduler="Euler").prompt())
    assert status(host)["counts"]["sample"]
    code, text = get(host, "trace")
    assert code == 200 and {event["tid"] for event in json.loads(text)["traceEvents"]} == {*range(len(ranks(host)))}
    code, text = get(host, "logs?rank=1&lines=5000")
    assert code == 200 and "rank 1 INFO loaded" in text
    assert len(get(host, "logs?rank=1&lines=1")[1].splitlines()) == 1
    assert get(host, "logs?rank=7")[0] == 404
    for query in ("rank=../1", "rank=-1", "lines=0", "lines=999999999"):
        assert get(host, f"logs?{query}")[0] == 400
    for route in ("status", "trace", "logs"):
        assert get(host, route, method="POST")[0] == 405


def get(host: ComfyHost, route: str, method: str = "GET") -> tuple[int, str]:
    try:
        return 200, ask(host, f"/paralleldit/{route}", method=method).decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
