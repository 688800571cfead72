"""What one of ComfyUI's own classes is asked for decides how the ranks share it, which does not change the image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.host.graphs import latents, relative_error, status
from tests.support.host.stock_prompts import prompt, write_cases

TOLERANCE = 1e-5
CASE = "longcat-image"
AUTO: dict[str, int] = {}
AXES = ("dp", "cfg", "ring", "ulysses")
DECIDED = "[ParallelDiT] Flux: "


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> Path:
    """The folder with the case's model; of its texts, another negative one is longer."""
    write_cases(comfyui, models, [CASE])
    texts = load_file(models / "input" / f"{CASE} negative.safetensors")
    longer = {**texts, "conditioning": texts["conditioning"].repeat(1, 2, 1)[:, :11].flip(1)}
    save_file(longer, models / "input" / f"{CASE} longer.safetensors")
    return models / "models" / "diffusion_models"


@contextmanager
def unreadable(file: Path) -> Iterator[None]:
    """While entered, another stands in the file's place, which is no model."""
    away = file.rename(file.with_suffix(".away"))
    file.write_bytes(b"no model")
    try:
        yield
    finally:
        away.replace(file)


def drawn(host: ComfyHost, **options: Any) -> torch.Tensor:
    """By our loader under an automatic plan; with the stock loader's latents it is compared."""
    right = latents(host, prompt(CASE, **options))
    ours = latents(host, prompt(CASE, AUTO, **options))
    assert relative_error(ours, right) <= TOLERANCE
    return ours


def plan_of(host: ComfyHost) -> dict[str, int]:
    return {axis: degree for axis, degree in status(host)["plan"].items() if axis in AXES and degree > 1}


def test_an_automatic_plan_follows_from_what_a_sampling_brings(host: ComfyHost, files: Path) -> None:
    """Two ranks: cond and uncond apart, or else the images, or else the tokens; on the weights that are there."""
    drawn(host, cfg=2.0)
    assert plan_of(host) == {"cfg": 2}
    assert "cond and uncond run side by side" in status(host)["note"]
    decided = host.log.read_text().count(DECIDED)
    with unreadable(files / f"{CASE}.safetensors"):
        alone = latents(host, prompt(CASE, AUTO, cfg=1.0))
        assert plan_of(host) == {"ulysses": 2}
        assert "brings no uncond" in status(host)["note"]
        several = latents(host, prompt(CASE, AUTO, cfg=1.0, batch=2))
        assert plan_of(host) == {"dp": 2}
    assert relative_error(alone, latents(host, prompt(CASE, cfg=1.0))) <= TOLERANCE
    assert relative_error(several, latents(host, prompt(CASE, cfg=1.0, batch=2))) <= TOLERANCE
    assert host.log.read_text().count(DECIDED) == decided + 2, "each sampling decides once"
