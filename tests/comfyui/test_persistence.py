"""The worker group stays between prompts, and goes when the host goes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from demo.host import ComfyHost
from tests.conftest import EXTRA_ARGS, HOST_ENV
from tests.support.host.faults import SECONDS_TO_GO, spaced, wait_until
from tests.support.host.graphs import (
    Job,
    alive,
    latents,
    post,
    ranks,
    status,
    worker_processes,
)

SD3 = Job("tiny-sd3.safetensors", "text.safetensors", "text.safetensors")
ULYSSES = {"cfg": 1, "ulysses": 2}
OTHER = 5  # a group that no other test has


def test_a_second_prompt_reuses_the_group_and_loads_nothing(host: ComfyHost) -> None:
    latents(host, Job("tiny-dit").prompt())
    processes, counts = worker_processes(host, 1), status(host)["counts"]
    first_progress = []
    posted = time.monotonic()

    def note(event: dict) -> None:
        if event["type"] == "progress" and not first_progress:
            first_progress.append(time.monotonic())

    latents(host, Job("tiny-dit", steps=5).prompt(), on_event=note)
    assert worker_processes(host, 1) == processes
    assert status(host)["counts"] == {**counts, "call": counts["call"] + 5}
    assert first_progress[0] - posted < SECONDS_TO_GO


@pytest.mark.parametrize("other", [SD3, Job("tiny-dit", plan=ULYSSES)], ids=["model", "plan"])
def test_another_model_or_plan_of_the_same_size_is_loaded_by_the_same_processes(host: ComfyHost, other: Job) -> None:
    latents(host, Job("tiny-dit").prompt())
    processes, before = worker_processes(host, 1), status(host)
    latents(host, other.prompt())
    after = status(host)
    assert worker_processes(host, 1) == processes
    assert after["counts"]["load"] == before["counts"]["load"] + 1
    assert (after["files"], after["plan"]) != (before["files"], before["plan"])


@pytest.mark.slow
def test_ranks_start_with_comfyui_where_that_is_set(comfyui: Path, own_base: Path) -> None:
    env = {**HOST_ENV, "PARALLELDIT_START": "comfyui", "PARALLELDIT_RANKS": "2"}
    with ComfyHost(comfyui, own_base, extra_args=EXTRA_ARGS, env=env) as host:
        wait_until(lambda: status(host)["state"] == "ready")
        pids = ranks(host)
        latents(host, Job("tiny-dit").prompt())
        assert ranks(host) == pids and len(pids) == 2


def test_models_in_two_groups_stay_loaded_side_by_side(host: ComfyHost) -> None:
    jobs = [Job("tiny-dit", seed=51), replace(SD3, group=OTHER, seed=52)]
    results = [latents(host, job.prompt()) for job in jobs]
    before = [status(host, group) for group in (1, OTHER)]
    assert set(before[0]["pids"]).isdisjoint(before[1]["pids"])
    again = [latents(host, replace(job, steps=5).prompt()) for job in jobs]
    after = [status(host, group) for group in (1, OTHER)]
    assert [seen["counts"]["load"] for seen in after] == [seen["counts"]["load"] for seen in before]
    assert [seen["pids"] for seen in after] == [seen["pids"] for seen in before]
    assert not any(torch.equal(result, other) for result, other in zip(results, again, strict=True)), "they were run"
    swapped = replace(jobs[1], group=1)
    assert torch.equal(latents(host, swapped.prompt()), results[1]), "one group swapping gives the same"


def test_a_larger_plan_leaves_no_process_of_the_old_group_and_a_smaller_one_runs_on_a_part(host: ComfyHost) -> None:
    smaller = Job("tiny-dit", plan=ULYSSES, seed=58, group=OTHER)
    expected, old = latents(host, smaller.prompt()), worker_processes(host, OTHER)
    assert len(ranks(host, OTHER)) == 2
    latents(host, replace(smaller, plan={"cfg": 2, "ulysses": 2}).prompt())
    pids = ranks(host, OTHER)
    assert len(pids) == 4 and not [process for process in old if alive(process)]
    assert torch.equal(latents(host, spaced(smaller).prompt()), expected)
    assert ranks(host, OTHER) == pids
    wait_until(lambda: [each["weights"] > 0 for each in status(host, OTHER)["memory"]] == [True, True, False, False])
    post(host, f"/paralleldit/stop?group={OTHER}")
