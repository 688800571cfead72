"""While two ranks share a UNet's rows, its run is cancelled and fails as that of any model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from demo.host import ComfyHost, PromptError
from tests.support.host.graphs import GROUPS_BY_SIZE, latents, ranks, runs
from tests.support.host.stock_prompts import prompt, write_cases

pytestmark = pytest.mark.usefixtures("groups_by_size")

NAME = "sdxl"
GROUP = GROUPS_BY_SIZE[2]
SECONDS_TO_CANCEL = 5


def in_bands(**options: Any) -> dict:
    return prompt(NAME, {"ulysses": 2}, group=GROUP, **options)


@pytest.fixture(scope="module", autouse=True)
def files(comfyui: Path, models: Path) -> Path:
    write_cases(comfyui, models, [NAME])
    wide = {"conditioning": torch.zeros(1, 13, 99), "pooled": torch.zeros(1, 1280)}
    save_file(wide, models / "input" / f"{NAME} wide.safetensors")
    return models


@pytest.fixture
def good(host: ComfyHost) -> torch.Tensor:
    return latents(host, in_bands())


def assert_served(host: ComfyHost, good: torch.Tensor) -> None:
    """The next prompt runs, in bands, and gives the same bits. At cfg 1 nothing reads the negative text."""
    assert torch.equal(latents(host, in_bands(negative="positive")), good)
    assert runs(host, GROUP)[0]["plan"] == "ulysses=2"


def test_cancel_ends_a_run_soon_and_the_same_ranks_run_the_next(host: ComfyHost, good: torch.Tensor) -> None:
    before = ranks(host, GROUP)
    prompt_id = host.queue(in_bands(steps=2000))
    cancelled: list[float] = []

    def cancel(event: dict) -> None:
        if event["type"] == "progress" and not cancelled:
            cancelled.append(time.monotonic())
            host.interrupt(prompt_id)

    entry = host.wait(prompt_id, on_event=cancel)
    assert time.monotonic() - cancelled[0] < SECONDS_TO_CANCEL
    assert "execution_interrupted" in [kind for kind, _ in entry["status"]["messages"]]
    assert_served(host, good)
    assert ranks(host, GROUP) == before


def test_what_the_unets_code_raises_is_the_nodes_error_and_the_ranks_live_on(
    host: ComfyHost, good: torch.Tensor
) -> None:
    """It is raised after the ranks have exchanged border rows and statistics of the layers before."""
    before = ranks(host, GROUP)
    with pytest.raises(PromptError, match="The model failed: RuntimeError: mat1 and mat2 shapes cannot be multiplied"):
        host.run(in_bands(positive="wide"))
    assert_served(host, good)
    assert ranks(host, GROUP) == before
