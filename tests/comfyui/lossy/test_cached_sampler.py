"""A step cache of the Parallel Sampler: on two ranks it skips what it skips on one, and the node says so."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from demo.host import ComfyHost, PromptError
from tests.support.host.graphs import Job, latents, relative_error, saved_latents

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
JOB = Job("shapes-dit", "red heart", width=64, height=64, steps=12, seed=90, scheduler="model's own", group=None)
CACHES: dict[str, dict[str, Any]] = {
    "first block": {"cache": "first block", "cache_threshold": 0.15},
    "taylorseer": {"cache": "taylorseer", "cache_interval": 3},
}


def apart(latents: torch.Tensor, exact: torch.Tensor) -> float:
    return float((latents - exact).norm() / exact.norm())


def cached(host: ComfyHost, plan: dict[str, int], **inputs: Any) -> tuple[torch.Tensor, str]:
    """The latents, and what the node says."""
    prompt = JOB.under(plan).prompt()
    node, sampler = next((name, each) for name, each in prompt.items() if each["class_type"] == "ParallelDiT_Sampler")
    sampler["inputs"].update(inputs)
    entry = host.run(prompt)
    return saved_latents(host, entry), entry["outputs"][node]["text"][0]


@pytest.mark.parametrize("name", CACHES)
def test_ranks_skip_what_one_skips_and_the_node_says_how_much(name: str, host: ComfyHost) -> None:
    right, said = cached(host, {"cfg": 1}, **CACHES[name])
    skipped, forwards = map(int, re.findall(r"\d+", said)[:2])
    assert said == f"Cache: {skipped} of {forwards} forwards skipped, {skipped / forwards:.0%}."
    assert 0 < skipped < forwards == 12
    exact = latents(host, JOB.under({"cfg": 1}).prompt())
    assert 1e-3 < apart(right, exact) < 0.5
    made, as_much = cached(host, {"ulysses": 2}, **CACHES[name])
    assert as_much == said
    assert relative_error(made, right) <= TOLERANCE
    assert torch.equal(latents(host, JOB.under({"cfg": 1}).prompt()), exact), "the next job finds nothing of it"


def test_cancel_within_a_cached_run_leaves_nothing_to_the_next(host: ComfyHost) -> None:
    right, said = cached(host, {"ulysses": 2}, **CACHES["first block"])
    prompt = replace(JOB.under({"ulysses": 2}), steps=1000).prompt()
    next(each for each in prompt.values() if each["class_type"] == "ParallelDiT_Sampler")["inputs"].update(
        CACHES["first block"]
    )
    cancelled: list[bool] = []
    prompt_id = host.queue(prompt)

    def cancel(event: dict) -> None:
        if event["type"] == "progress" and not cancelled:
            cancelled.append(True)
            host.interrupt(prompt_id)

    entry = host.wait(prompt_id, on_event=cancel)
    assert cancelled and "execution_interrupted" in [kind for kind, _ in entry["status"]["messages"]]
    again, as_much = cached(host, {"ulysses": 2}, **CACHES["first block"], denoise=0.99999)  # or the host has it
    assert as_much == said and torch.equal(again, right)


def test_a_cache_is_compared_with_the_run_without(host: ComfyHost) -> None:
    exact = latents(host, JOB.under({"ulysses": 2}).prompt())
    made, said = cached(host, {"ulysses": 2}, **CACHES["taylorseer"], compare="once")
    assert said.startswith("Cache: ")
    assert f"exact (ulysses=2): the latents differ by {apart(made, exact):.2%}" in said
    assert "ulysses=2, taylorseer cache" in said


def test_a_cache_is_refused_under_pipefusion(host: ComfyHost) -> None:
    with pytest.raises(PromptError, match="decides for all blocks and all tokens at once, and pipefusion=2"):
        cached(host, {"pipefusion": 2, "patches": 2}, **CACHES["first block"])
