"""What people use with a UNet draws on two ranks, in bands of rows, what it draws with the stock loader."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.cases.files.unet_cases import pictures
from tests.support.host.graphs import GROUPS_BY_SIZE, Graph, Link, latents, relative_error, runs
from tests.support.host.stock_prompts import prompt, write_cases
from tests.support.programs import run_program

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
EFFECT = 1e-3  # what each changes at least
BANDS = {"ulysses": 2}
RANK = 4
HEIGHT, WIDTH = 168, 264
LATENT = pictures(1, HEIGHT, WIDTH)
Tensors = dict[str, torch.Tensor]
Change = Callable[[Graph, dict[str, Any]], Link | None]


def asked(name: str, plan: dict[str, Any] | None, change: Change | None = None, **options: Any) -> dict:
    """A prompt on one picture. change: of the inputs of its KSampler; it may return other latents to save."""
    graph = Graph()
    graph.prompt = prompt(name, plan, group=GROUPS_BY_SIZE[2], size=LATENT, **options)
    (sampler,) = [node["inputs"] for node in graph.prompt.values() if node["class_type"] == "KSampler"]
    (saver,) = [node["inputs"] for node in graph.prompt.values() if node["class_type"] == "SaveLatent"]
    saver["samples"] = (change(graph, sampler) if change else None) or saver["samples"]
    return graph.prompt


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> Path:
    write_cases(comfyui, models, ["sd15"])
    run_program(comfyui, "tests.support.files.write_controls", models / "models" / "controlnet", "sd15")
    return models / "models"


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: Path) -> Callable[[str], torch.Tensor]:
    """By case, what the stock loader's model draws."""
    return cache(lambda name: latents(host, asked(name, None)))


def behind(node: str, **inputs: Any) -> Change:
    """A node between the loader and the sampler."""

    def change(graph: Graph, sampler: dict[str, Any]) -> None:
        sampler["model"] = graph.add(node, model=sampler["model"], **inputs)

    return change


def controlled(*kinds: str) -> Change:
    """ControlNets or T2I adapters of files, one after the other."""

    def change(graph: Graph, sampler: dict[str, Any]) -> None:
        image = graph.add("EmptyImage", width=64, height=48, batch_size=1, color=0x40A0E0)
        for kind in kinds:
            network = graph.add("ControlNetLoader", control_net_name=f"{kind}.safetensors")
            given = {"control_net": network, "image": image, "strength": 0.8, **WHOLE_RUN}
            texts = {which: sampler[which] for which in ("positive", "negative")}
            positive = graph.add("ControlNetApplyAdvanced", **texts, **given)
            sampler.update(positive=positive, negative=[positive[0], 1])

    return change


WHOLE_RUN = {"start_percent": 0.0, "end_percent": 1.0}
# On sd15. The census has more, on another UNet.
CHANGES = {
    "IP-Adapter's attention": behind("Test_PatchUNet"),
    "a ControlNet and a T2I adapter": controlled("sd15 control", "sd15 t2i"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_it_draws_what_it_draws_with_the_stock_loader(
    name: str, host: ComfyHost, stock: Callable[[str], torch.Tensor]
) -> None:
    right = latents(host, asked("sd15", None, CHANGES[name]))
    assert relative_error(right, stock("sd15")) > EFFECT, "it changes nothing"
    drawn = latents(host, asked("sd15", BANDS, CHANGES[name]))
    run = runs(host, GROUPS_BY_SIZE[2])[0]
    assert (run["is_stock"], run["plan"], bool(run["reason"])) == (False, "ulysses=2", False)
    assert (run["residuals"] > 0) == ("T2I adapter" in name), "the ranks compute ControlNets of files"
    assert relative_error(drawn, right) <= TOLERANCE


Random = Callable[..., torch.Tensor]


def low_rank(rows: int, columns: int, *window: int, random: Random) -> Tensors:
    return {
        ".lora_up.weight": random(rows, RANK, *[1 for _ in window]),
        ".lora_down.weight": random(RANK, columns, *window),
    }


def locon(rows: int, columns: int, *window: int, random: Random) -> Tensors:
    """Of one layer by the shape of its weight: convolutions have a third matrix (CP decomposition)."""
    if not window:
        return low_rank(rows, columns, random=random)
    found = low_rank(rows, columns, *[1 for _ in window], random=random)
    return {**found, ".lora_mid.weight": random(RANK, RANK, *window)}


def write_adapter(folder: Path, model: str) -> str:
    """A LoCon for every convolution and matrix of the blocks that it fits."""
    generator, tensors = torch.Generator().manual_seed(4), {}

    def random(*shape: int) -> torch.Tensor:
        return 0.1 * torch.randn(*shape, generator=generator)

    for key, weight in load_file(folder / "diffusion_models" / f"{model}.safetensors").items():
        is_layer = key.endswith(".weight") and "_block" in key and weight.ndim in (2, 4)
        if is_layer and not any(size % 16 for size in weight.shape[:2]):
            name = "lora_unet_" + key.removesuffix(".weight").replace(".", "_")
            made = locon(*weight.shape, random=random)
            tensors |= {name + end: tensor.contiguous() for end, tensor in made.items()}
    save_file(tensors, folder / "loras" / f"{model} LoCon.safetensors")
    return f"{model} LoCon.safetensors"


def test_an_adapter_of_convolutions_and_matrices_changes_the_picture_as_with_the_stock_loader(
    host: ComfyHost, files: Path, stock: Callable[[str], torch.Tensor]
) -> None:
    adapted = behind("LoraLoaderModelOnly", lora_name=write_adapter(files, "sd15"), strength_model=0.8)
    right = latents(host, asked("sd15", None, adapted))
    assert relative_error(right, stock("sd15")) > EFFECT, "it changes nothing"
    assert relative_error(latents(host, asked("sd15", BANDS, adapted)), right) <= TOLERANCE
