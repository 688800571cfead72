"""What goes wrong with a worker group is an error that names it, soon; and the next prompt is served."""

from __future__ import annotations

import re
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from demo.host import ComfyHost
from tests.support.host.faults import CASES, GOOD, PYTHON, Case, frail_host, good, kill_while_it_samples, spaced, suffer
from tests.support.host.graphs import latents, post, ranks, relative_error, runs, status
from tests.support.tiers import slow_but

QUICK = ("kill rank 1, in a step", "stop rank 0, in a step of ComfyUI's loop")


@pytest.fixture(scope="module")
def frail(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyHost]:
    with frail_host(comfyui, tmp_path_factory.mktemp("frail")) as host:
        yield host


@pytest.mark.parametrize("case", slow_but(QUICK, {name: (case,) for name, case in CASES.items()}))
def test_a_fault_is_named_soon_and_the_next_prompt_is_served(case: Case, frail: ComfyHost) -> None:
    outcome = suffer(frail, case.moment, case.fault)
    for pattern in case.says:
        assert re.search(pattern, outcome.said), outcome.said
    assert bool(outcome.said) == bool(case.says), outcome.said
    assert outcome.to_error <= case.seconds_to_error, outcome
    assert not outcome.left


def test_models_run_as_stock_while_no_group_starts_and_in_the_ranks_after_a_restart(frail: ComfyHost) -> None:
    reference, python = good(frail), frail.base / PYTHON
    whole = python.read_text()
    python.write_text("#!/bin/sh\nexit 7\n")
    post(frail, "/paralleldit/stop")
    for _ in range(2):  # the second one does not try to start the ranks again
        assert relative_error(good(frail, as_stock=True), reference) < 1e-5
        assert runs(frail)[0]["is_stock"]
        for words in ("runs as stock", "failed to start 3 times", "exit code 7", "restart the group"):
            assert words in runs(frail)[0]["reason"]
    assert status(frail)["state"] == "failed"
    python.write_text(whole)
    post(frail, "/paralleldit/restart")
    assert good(frail).equal(reference)
    assert not runs(frail)[0]["is_stock"]


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}], ids=["origin", "fetch"]
)
def test_a_page_from_elsewhere_can_change_nothing(frail: ComfyHost, headers: dict[str, str]) -> None:
    good(frail)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        post(frail, "/paralleldit/stop", headers)
    assert status(frail)["state"] == "ready"


def test_two_comfyuis_on_one_machine_do_not_meet(host: ComfyHost, frail: ComfyHost) -> None:
    jobs = [replace(spaced(GOOD), steps=20).prompt() for _ in range(2)]
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(latents, (host, frail), jobs)
    assert torch.equal(first, second)
    assert set(ranks(host)).isdisjoint(ranks(frail))


def test_no_process_outlives_a_host_that_is_killed_while_it_samples(host: ComfyHost, frail: ComfyHost) -> None:
    """The last test here: the other ComfyUI goes on."""
    alone = good(host)
    kill_while_it_samples(frail)
    assert good(host).equal(alone)
