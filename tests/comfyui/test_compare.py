"""A lossy setting of the Parallel Sampler beside the exact one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from demo.host import ComfyHost
from tests.support.host.graphs import Job, latents, saved_latents

pytestmark = pytest.mark.usefixtures("groups_by_size")

LOSSY = Job(
    "shapes-dit", "red heart", width=64, height=64, steps=6, scheduler="model's own", group=None,
    plan={"pipefusion": 2, "patches": 3}
)  # fmt: skip
EXACT = LOSSY.under({"ulysses": 2})


def compared(host: ComfyHost, job: Job) -> tuple[torch.Tensor, str, list[Path]]:
    """The latents, what the node says, and its pictures."""
    prompt = job.prompt()
    node, sampler = next((name, each) for name, each in prompt.items() if each["class_type"] == "ParallelDiT_Sampler")
    sampler["inputs"]["compare"] = "once"
    entry = host.run(prompt)
    shown = entry["outputs"][node]
    return saved_latents(host, entry), shown["text"][0], [host.output_file(each) for each in shown.get("images", [])]


def test_the_first_prompt_runs_exactly_too_and_later_ones_are_told_what_was_found(host: ComfyHost) -> None:
    job = replace(LOSSY, seed=80)
    lossy, exact = latents(host, job.prompt()), latents(host, replace(EXACT, seed=80).prompt())
    found, text, files = compared(host, replace(job, denoise=0.99999))
    assert torch.equal(found, lossy), "what goes on is the setting that was asked for"
    error = float((lossy - exact).norm() / exact.norm())
    assert error > 1e-4 and f"the latents differ by {error:.2%}" in text
    assert "exact (ulysses=2)" in text and "(pipefusion=2 × 3 patches, 1 sync)" in text and "×" in text
    pictures = [np.asarray(Image.open(file), dtype=float) for file in files]
    assert len(pictures) == 2 and pictures[0].shape == pictures[1].shape
    assert 0 < np.abs(pictures[0] - pictures[1]).mean() < 64

    _, again, files = compared(host, replace(job, seed=81, positive="blue star", denoise=0.99999))
    assert again == f"{text} (Found on an earlier prompt.)" and not files
    _, other, files = compared(host, replace(job, seed=81, steps=5))
    assert "earlier" not in other and len(files) == 2, "another setting is compared anew"


def test_an_exact_setting_has_nothing_to_compare(host: ComfyHost) -> None:
    for plan in (EXACT.plan, {"pipefusion": 2, "patches": 3, "sync_steps": 6}):
        _, text, files = compared(host, replace(EXACT, seed=82).under(plan))
        assert text == "Nothing to compare: this setting is exact." and not files


def test_what_was_compared_is_compared_again_where_the_file_is_damaged(host: ComfyHost) -> None:
    _, first, _ = compared(host, replace(LOSSY, seed=83, steps=4))
    (file,) = host.base.glob("user/__paralleldit/comparisons.json")
    assert json.loads(file.read_text())
    file.write_text("{")
    _, text, files = compared(host, replace(LOSSY, seed=84, steps=4))
    assert "earlier" not in text and len(files) == 2 and first


def test_what_travels_in_int4_is_compared_with_the_same_plan_exact(host: ComfyHost) -> None:
    job = replace(EXACT, seed=85, steps=2).under({"ulysses": 2, "exchange_dtype": "int4"})
    _, text, files = compared(host, job)
    assert "exact (ulysses=2)" in text and "(ulysses=2 × int4 exchange)" in text and len(files) == 2
