"""One block of each kind of Flux.1 at its full width, 2 GB: what it draws, and the memory that host and ranks take."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

from demo.host import ComfyHost
from tests.support.cases.sized_cases import FULL_WIDTH
from tests.support.host.graphs import Graph, Job, latents, ranks, relative_error
from tests.support.loaders import parallelize
from tests.support.programs import run_program

NAME = "flux-full-width"
TOLERANCE = 1e-4
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def file(comfyui: Path, models: Path) -> Path:
    folder = models / "models" / "diffusion_models"
    run_program(comfyui, "tests.support.files.write_stock_models", folder, NAME)
    generator = torch.Generator().manual_seed(3)
    save_file(FULL_WIDTH.texts(generator), models / "input" / f"{NAME}.safetensors")
    return folder / f"{NAME}.safetensors"


def prompt(plan: dict[str, int] | None) -> dict:
    """One step, under a plan or as stock."""
    graph = Graph()
    model = graph.add("UNETLoader", unet_name=f"{NAME}.safetensors", weight_dtype="default")
    if plan:
        model = parallelize(graph, model, plan)
    text = graph.add("Test_LoadConditioning", name=f"{NAME}.safetensors")
    sampled = graph.add(
        "KSampler", model=model, positive=text, negative=text, seed=7, steps=1, cfg=1.0, sampler_name="euler",
        scheduler="simple", denoise=1.0, latent_image=graph.add("Test_EmptyLatent", shape="1 16 8 8"),
    )  # fmt: skip
    graph.add("SaveLatent", samples=sampled, filename_prefix="test")
    return graph.prompt


def proportional(pids: list[int]) -> int:
    """Bytes that these processes hold together, each page counted once."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in pids)


@pytest.mark.slow
def test_the_host_holds_no_weights_and_the_ranks_hold_them_once(file: Path, own_host: ComfyHost) -> None:
    host = psutil.Process(own_host.process.pid)
    small = Job("tiny-flux.safetensors", positive="text.safetensors", negative="text.safetensors")
    drawn = {}
    for plan in ({"cfg": 2}, {"ulysses": 2}):
        latents(own_host, small.under(plan).prompt())
        before, held = host.memory_info().rss, proportional(ranks(own_host))
        drawn[str(plan)] = latents(own_host, prompt(plan))
        more, weights = host.memory_info().rss - before, proportional(ranks(own_host)) - held
        print(f"{plan}: host {more / MEGABYTE:.0f} MiB more, ranks {weights / file.stat().st_size:.2f} of the file")
        assert more < 50 * MEGABYTE
        assert weights < 1.3 * file.stat().st_size
    stock = latents(own_host, prompt(None))
    assert all(relative_error(ours, stock) <= TOLERANCE for ours in drawn.values())
