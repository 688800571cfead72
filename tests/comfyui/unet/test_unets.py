"""UNets in use (inpainting, a refiner, video and others) draw on several ranks what the stock loader draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.cases.files.unet_cases import UNETS
from tests.support.files.write_gguf import write_gguf
from tests.support.host.graphs import GROUPS_BY_SIZE, latents, relative_error
from tests.support.host.stock_prompts import prompt, write_cases
from tests.support.tiers import slow_but

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
WAYS = {"one rank": {"cfg": 1}, "two ranks": {"ulysses": 2}, "four ranks": {"ring": 2, "ulysses": 2}}
# The gate has one rank for each kind of layers, four ranks once, and on two ranks those that differ in their layers or
# inputs. test_host_models.py has four ranks of each class.
GATE = [
    *("sdxl, one rank", "svd, one rank", "ssd-1b, four ranks"),
    *(f"{name}, two ranks" for name in ("sd15-inpainting", "sdxl", "sdxl-refiner", "svd", "cascade-c", "cascade-b")),
]


@pytest.fixture(scope="module")
def stock(comfyui: Path, models: Path, host: ComfyHost) -> Callable[[str], torch.Tensor]:
    """By case, what the stock loader's model draws."""
    write_cases(comfyui, models, UNETS)
    return cache(lambda name: latents(host, prompt(name)))


@pytest.mark.parametrize(
    ("name", "plan"),
    slow_but(GATE, {f"{name}, {how}": (name, plan) for how, plan in WAYS.items() for name in UNETS}),
)
def test_a_unet_in_bands_of_rows_draws_what_the_stock_loader_draws(
    name: str, plan: dict[str, int], host: ComfyHost, stock: Callable[[str], torch.Tensor]
) -> None:
    drawn = latents(host, prompt(name, plan, group=GROUPS_BY_SIZE[math.prod(plan.values())]))
    assert stock(name).std() > 0.01, "a model that draws nothing shows nothing"
    if plan == {"cfg": 1}:
        assert torch.equal(drawn, stock(name))
    assert relative_error(drawn, stock(name)) <= TOLERANCE


def test_a_unet_in_gguf_draws_what_the_stock_loader_draws_of_its_values(
    host: ComfyHost, models: Path, stock: Callable[[str], torch.Tensor]
) -> None:
    name, folder = "sdxl", models / "models" / "diffusion_models"
    plain = folder / f"{name}.safetensors"
    with safe_open(plain, "pt") as file:
        metadata = file.metadata()
    values = write_gguf(load_file(plain), folder / f"{name}.gguf", ["Q8_0"], metadata)
    save_file(values, folder / f"{name}-values.safetensors", metadata)
    right = latents(host, prompt(name, model=f"{name}-values.safetensors"))
    assert relative_error(right, stock(name)) > 1e-4, "the format changes nothing"
    for plan in (WAYS["two ranks"], {**WAYS["two ranks"], "weights": "shared"}):
        drawn = latents(host, prompt(name, plan, model=f"{name}.gguf", group=GROUPS_BY_SIZE[2]))
        assert relative_error(drawn, right) <= TOLERANCE


def write_t2i_adapter(file: Path, channels: tuple[int, ...] = (32, 64, 128, 128)) -> None:
    """Random weights under the names of the adapters for Stable Diffusion 1."""
    shapes = {"conv_in": (channels[0], 3 * 8**2, 3, 3)}
    for place, (before, own) in enumerate(zip(channels[:1] + channels, channels, strict=False)):
        if before != own:
            shapes[f"body.{2 * place}.in_conv"] = (own, before, 1, 1)
        for block, layer in itertools.product((2 * place, 2 * place + 1), ("block1", "block2")):
            shapes[f"body.{block}.{layer}"] = (own, own, 3 if layer == "block1" else 1, 3 if layer == "block1" else 1)
    generator, weights = torch.Generator().manual_seed(5), {}
    for layer, shape in shapes.items():
        weights[f"{layer}.weight"] = torch.randn(shape, generator=generator) / math.prod(shape[1:]) ** 0.5
        weights[f"{layer}.bias"] = torch.zeros(shape[0])
    file.parent.mkdir(exist_ok=True)
    save_file(weights, file)


def test_a_t2i_adapter_draws_what_it_draws_with_the_stock_loader(
    host: ComfyHost, models: Path, stock: Callable[[str], torch.Tensor]
) -> None:
    write_t2i_adapter(models / "models" / "controlnet" / "t2i.safetensors")

    def adapted(plan: dict[str, int] | None) -> dict:
        made = prompt("sd15", plan, group=GROUPS_BY_SIZE[2])
        (sampler,) = [node["inputs"] for node in made.values() if node["class_type"] == "KSampler"]
        image = {"width": 64, "height": 48, "batch_size": 1, "color": 0x40A0E0}
        made["image"] = {"class_type": "EmptyImage", "inputs": image}
        made["adapter"] = {"class_type": "ControlNetLoader", "inputs": {"control_net_name": "t2i.safetensors"}}
        given = {"control_net": ["adapter", 0], "image": ["image", 0]}
        given |= {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}
        given |= {which: sampler[which] for which in ("positive", "negative")}
        made["applied"] = {"class_type": "ControlNetApplyAdvanced", "inputs": given}
        sampler.update(positive=["applied", 0], negative=["applied", 1])
        return made

    right = latents(host, adapted(None))
    assert relative_error(right, stock("sd15")) > 1e-3, "the adapter changes nothing"
    assert relative_error(latents(host, adapted(WAYS["two ranks"])), right) <= TOLERANCE
