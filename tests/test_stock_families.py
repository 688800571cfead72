"""Every family of the editor, in the file that ComfyUI's own loader takes, draws what that loader's MODEL draws."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from demo.host import REPOSITORY, ComfyHost
from tests.graphs import Graph, Link, latents, relative_error
from tests.stock_cases import CASES

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> None:
    """The models and texts of all cases, where the host looks for them."""
    command = [sys.executable, "-m", "tests.write_stock_models", str(comfyui), str(models / "models/diffusion_models")]
    run = subprocess.run([*command, *CASES], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-4000:]
    for name, case in CASES.items():
        generator = torch.Generator().manual_seed(3)
        for which in ("positive", "negative"):
            save_file(case.texts(generator), models / "input" / f"{name} {which}.safetensors")


def prompt(name: str, model: Link, graph: Graph) -> dict:
    """A KSampler with the model, and the case's texts and latents."""
    case = CASES[name]
    positive, negative = (
        graph.add("Test_LoadConditioning", name=f"{name} {which}.safetensors") for which in ("positive", "negative")
    )
    latent = graph.add("Test_EmptyLatent", shape=" ".join(map(str, case.latent)))
    sampled = graph.add(
        "KSampler", model=model, positive=positive, negative=negative, latent_image=latent, seed=7, steps=3,
        cfg=case.cfg, sampler_name="euler", scheduler="simple", denoise=1.0,
    )  # fmt: skip
    graph.add("SaveLatent", samples=sampled, filename_prefix="test")
    return graph.prompt


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: None):
    """By case, the latents that ComfyUI's own model code samples."""

    def sample(name: str) -> torch.Tensor:
        graph = Graph()
        model = graph.add("UNETLoader", unet_name=f"{name}.safetensors", weight_dtype="default")
        return latents(host, prompt(name, model, graph))

    return cache(sample)


@pytest.mark.parametrize(("plan", "loop_mode"), [({"cfg": 1}, True), ({"ulysses": 2}, False)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_family_draws_what_the_stock_loader_draws(
    name: str, plan: dict[str, int], loop_mode: bool, host: ComfyHost, stock
) -> None:
    graph = Graph()
    loader = {"model_name": f"{name}.safetensors", "dtype": "fp32", "loop_mode": loop_mode}
    loader["plan"] = graph.add("ParallelDiT_Plan", mode="manual", **plan)
    model = graph.add("ParallelDiT_LoadDiffusionModel", **loader)
    assert relative_error(latents(host, prompt(name, model, graph)), stock(name)) <= TOLERANCE
