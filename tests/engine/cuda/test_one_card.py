"""Two ranks in a ComfyUI with one card, which they share as two machines with a card each: they draw what stock draws.

With --device cpu, on the CPU. How near, the report of `python3 dev.py gpu` tells. With a tool's name in the variable
SANITIZER, the ranks run under it (`tests/support/streams/sanitizers.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from demo.host import REPOSITORY, ComfyHost, free_port
from tests.support.group.neighbour import ADDRESS
from tests.support.host.graphs import TINY_MODELS, latents, relative_error
from tests.support.host.stock_prompts import host_with_cases, prompt
from tests.support.streams.sanitizers import read_findings, start_ranks_under

pytestmark = pytest.mark.gpu

CASE, LATENT = "longcat-image", (1, 16, 8, 12)
PLANS = (
    {"ulysses": 2}, {"ring": 2}, {"cfg": 2}, {"pipefusion": 2, "patches": 1},
    {"ulysses": 2, "weights": "shared"}, {"ring": 2, "weights": "host"},
)  # fmt: skip
PATCHES = {"pipefusion": 2, "patches": 2}
STALE = 5e-2  # of patches that attend to the step before, relative to the same sampling without patches
TOLERANCE = {"cpu": 1e-5, "cuda": 5e-2}  # a card computes in bf16


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> str:
    device = request.config.getoption("--device")
    if device == "cuda" and torch.cuda.device_count() > 1:
        pytest.skip("each rank has a GPU of its own here")
    return device


@pytest.fixture(scope="module")
def shared_card(
    device: str, comfyui: Path, own_ranks: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComfyHost]:
    """A ComfyUI, and a neighbour that joins its groups."""
    base = tmp_path_factory.mktemp("shared-card")
    first = f"127.0.0.1:{free_port()}"
    started = {f"{library}_SOCKET_IFNAME": "lo" for library in ("NCCL", "GLOO")}
    started |= start_ranks_under(os.environ.get("SANITIZER", ""), base)
    env = TINY_MODELS | started | {"PARALLELDIT_MACHINES": f"{first},{ADDRESS}"}
    host = host_with_cases(comfyui, base, [CASE], env, cpu=device == "cpu")
    command = [sys.executable, "-m", "tests.support.group.neighbour", first]
    with (base / "neighbour.log").open("wb") as log:
        neighbour = subprocess.Popen(
            command, cwd=REPOSITORY, env=os.environ | started | {"NCCL_HOSTID": "neighbour"}, stdout=log, stderr=log
        )
    try:
        with host:
            yield host
    finally:
        neighbour.terminate()
        neighbour.wait(30)
    assert read_findings(base) == []


@pytest.fixture(scope="module")
def right(shared_card: ComfyHost) -> torch.Tensor:
    return latents(shared_card, prompt(CASE, size=LATENT))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_two_ranks_on_one_card_draw_what_stock_draws(
    plan: dict, device: str, shared_card: ComfyHost, right: torch.Tensor, record_property: Callable[[str, object], None]
) -> None:
    record_property("group", "ComfyUI, two ranks on one card")
    error = relative_error(latents(shared_card, prompt(CASE, plan, size=LATENT)), right)
    record_property("error", error)
    assert error <= TOLERANCE[device]


def test_patches_travel_between_two_ranks_in_the_parallel_sampler(
    device: str, shared_card: ComfyHost, record_property: Callable[[str, object], None]
) -> None:
    """Both send and receive ahead, over one link each way: with one for both ways they would wait for ever."""
    record_property("group", "ComfyUI, two ranks on one card")
    whole, patched = (
        latents(shared_card, prompt(CASE, plan, size=LATENT, scheduler="model's own"))
        for plan in (PATCHES | {"patches": 1}, PATCHES)
    )
    error = relative_error(patched, whole)
    record_property("error", error)
    assert 0 < error <= STALE
