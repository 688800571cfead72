"""A prompt with *Parallelize Model* starts its ranks when it is queued, and is never harmed by that."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.host import ComfyHost, PromptError
from tests.support.host.graphs import Graph, Link, ask, latents, post, ranks, relative_error, runs, status
from tests.support.host.stock_prompts import prompt, write_cases

MODEL, GROUP = "longcat-image", 5
# Inputs that are gone, and the mark of Compare plans.
OTHERS = {"lossy": "allowed", "compare": "once", "paralleldit_comparison": 1}
PARALLELIZE = {"class_type": "ParallelDiT_Parallelize", "inputs": {"mode": "auto", "model": ["1", 0]}}


@pytest.fixture
def stopped(host: ComfyHost, comfyui: Path, models: Path) -> Iterator[None]:
    write_cases(comfyui, models, [MODEL])
    yield
    post(host, f"/paralleldit/stop?group={GROUP}")


@pytest.mark.usefixtures("stopped")
def test_the_ranks_start_before_the_node_runs(host: ComfyHost) -> None:
    """The node before it waits for them, behind a loader of which only the file is known. Inputs that are gone do not
    matter."""

    def patch(graph: Graph, model: Link) -> Link:
        waits = graph.add("Test_WaitForRanks", model=model, group=GROUP)
        return graph.add("ParallelDiT_Parallelize", model=waits, mode="manual", ulysses=2, group=GROUP, **OTHERS)

    made = latents(host, prompt(MODEL, None, patch=patch))
    assert relative_error(made, latents(host, prompt(MODEL, None))) < 1e-5
    assert not runs(host, GROUP)[0]["is_stock"] and status(host, GROUP)["state"] == "ready"


@pytest.mark.usefixtures("stopped")
def test_a_plan_that_its_node_refuses_costs_running_ranks_nothing(host: ComfyHost) -> None:
    """The node runs a second after the prompt was accepted."""

    def plan(ulysses: int, seconds: float) -> dict:
        def patch(graph: Graph, model: Link) -> Link:
            waits = graph.add("Test_Wait", value=model, seconds=seconds)
            return graph.add("ParallelDiT_Parallelize", model=waits, mode="manual", ulysses=ulysses, group=GROUP)

        return prompt(MODEL, None, patch=patch)

    latents(host, plan(2, 0.0))
    before = ranks(host, GROUP)
    with pytest.raises(PromptError, match="ulysses=5"):
        host.run(plan(5, 1.0))
    latents(host, plan(2, 0.0))
    assert ranks(host, GROUP) == before


@pytest.mark.parametrize(
    "asked",
    [
        [],
        {"1": 3},
        {"1": PARALLELIZE},
        {"1": {"class_type": "NoSuchNode", "inputs": {}}, "2": PARALLELIZE},
        {"1": {"class_type": "UNETLoader", "inputs": {"unet_name": ["1", 0], "weight_dtype": []}}, "2": PARALLELIZE},
    ],
    ids=["a list", "a number", "a node behind itself", "an unknown node", "odd links"],
)
def test_a_prompt_that_comfyui_refuses_is_refused_as_before(asked: Any, host: ComfyHost) -> None:
    before = len(host.log.read_text())
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(host, "/prompt", json.dumps({"prompt": asked}).encode())
    assert caught.value.code in (400, 500)
    assert "paralleldit-queued" not in host.log.read_text()[before:]
