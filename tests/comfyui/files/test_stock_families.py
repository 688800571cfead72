"""Every family, in the file that ComfyUI's own loader takes, draws on ranks what that loader's MODEL draws."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.cases.files.host_cases import HOST_CASES
from tests.support.cases.stock_cases import CASES
from tests.support.files.adapters import make_lora
from tests.support.host import stock_prompts
from tests.support.host.graphs import GROUPS_BY_SIZE, latents, relative_error, with_lora
from tests.support.host.stock_prompts import STEPS, write_cases
from tests.support.programs import run_program

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
# Left out is what differs from another case in an option of its text or in the length of its tokens, which
# tests/engine/test_host_models.py has of the same classes; or in the channels of its input. And HunyuanDiT 1.1, which
# ComfyUI detects by its published width.
OPTIONS = {
    *("flux-canny", "qwen-image-edit-offset", "qwen-image-edit-clean", "qwen-image-edit-noisy", "z-image-filled"),
    *("lumina-2-filled", "chroma-filled", "auraflow-filled", "auraflow-odd", "hunyuandit-1.1"),
}
NAMES = [name for name in (*CASES, "unet") if name not in OPTIONS]
# One of each class: it runs on two ranks too.
SHARED = (
    *("sd3.5", "flux-kontext", "wan-2.1-t2v", "ltx-0.9", "hunyuanvideo", "qwen-image", "z-image", "lumina-2"),
    *("chroma", "flux-2-dev", "unet"),
)
PLANS = [{"cfg": 1}, {"cfg": 2}, {"ulysses": 2}, {"ring": 2}]  # of classes that ComfyUI alone has
DRAWN = [
    *((name, {"cfg": 1}) for name in NAMES),
    *((name, {"ulysses": 2}) for name in SHARED),
    *((name, plan) for name in HOST_CASES for plan in PLANS),
]
EVEN = (1, 16, 8, 12)  # a latent that falls into patches
SYNCHRONOUS = [{"pipefusion": 2, "patches": 1}, {"pipefusion": 2, "patches": 3, "sync_steps": 10}]
QUANTISED = "longcat-image"
ON_TWO = {"plan": {"ulysses": 2}, "group": GROUPS_BY_SIZE[2]}
prompt = partial(stock_prompts.prompt, steps=2)  # the second one has what the first one kept
Layers = Iterator[tuple[str, torch.Tensor]]  # by the names that a LoRA has for them, their weights


def divided_names(layer: str, weight: torch.Tensor) -> Layers:
    """diffusers' names of attention, whose matrices are one in the file."""
    if not layer.endswith(".qkv"):
        yield f"diffusion_model.{layer}", weight
        return
    for kind, part in zip("qkv", weight.chunk(3), strict=True):
        yield f"diffusion_model.{layer.removesuffix('qkv')}to_{kind}", part


# By case, how a LoRA names its layers, some of which are one in the file: each way to name them.
LORAS: dict[str, Callable[[str, torch.Tensor], Layers]] = {
    "qwen-image": lambda layer, weight: iter([(layer, weight)]),
    "z-image": divided_names,
    "lumina-2": lambda layer, weight: iter([(f"diffusion_model.{layer}", weight)]),
}
# A case, and what else its positive text holds.
GIVEN = {
    "a mask that leaves out text": ("hunyuanvideo", {"attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0, 0]])}),
    "an offset": ("cogvideox-1.5-i2v", {"ofs": torch.full((1,), 3.0)}),
}


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> Path:
    """The folder with the models of the cases."""
    write_cases(comfyui, models, [*NAMES, *HOST_CASES])
    return models / "models" / "diffusion_models"


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: Path) -> Callable[[str], torch.Tensor]:
    """By case, the latents that ComfyUI's own model code samples."""
    return cache(lambda name: latents(host, prompt(name)))


@pytest.mark.parametrize(("name", "plan"), DRAWN, ids=str)
def test_a_file_draws_what_the_stock_loader_draws(
    name: str, plan: dict[str, int], host: ComfyHost, stock: Callable
) -> None:
    drawn = latents(host, prompt(name, plan, group=GROUPS_BY_SIZE[math.prod(plan.values())]))
    if plan == {"cfg": 1}:
        assert torch.equal(drawn, stock(name))
    assert relative_error(drawn, stock(name)) <= TOLERANCE


@pytest.mark.parametrize("dtype", ["fp8_e4m3fn_fast", "fp8_e5m2"])
def test_weights_are_cast_as_the_stock_loader_casts_them(dtype: str, host: ComfyHost, files: Path) -> None:
    name = "z-image"
    right = latents(host, prompt(name, dtype=dtype))
    assert relative_error(right, latents(host, prompt(name))) > 1e-3, "the cast changes nothing"
    one = {"plan": {"cfg": 1}, "group": GROUPS_BY_SIZE[1]}
    assert torch.equal(latents(host, prompt(name, dtype=dtype, **one)), right)


def test_a_video_whose_first_frame_is_kept(host: ComfyHost, files: Path) -> None:
    """As Wan 2.2 5B makes a video of an image: each frame has a timestep of its own."""

    def masked(made: dict) -> dict:
        (latent,) = [node for node, inputs in made.items() if inputs["class_type"] == "Test_EmptyLatent"]
        made["mask"] = {"class_type": "Test_FirstFrameMask", "inputs": {"samples": [latent, 0]}}
        (sampler,) = [inputs for inputs in made.values() if inputs["class_type"] == "KSampler"]
        sampler["inputs"]["latent_image"] = ["mask", 0]
        return made

    right = latents(host, masked(prompt("wan-2.2-5b")))
    assert relative_error(latents(host, masked(prompt("wan-2.2-5b", **ON_TWO))), right) <= TOLERANCE


def test_two_experts_are_two_loaders(host: ComfyHost, files: Path) -> None:
    """As Wan 2.2 14B has them: one for the steps of high noise, one for the rest."""
    name, other = "wan-2.1-t2v", "low-noise.safetensors"
    weights = load_file(files / f"{name}.safetensors")
    save_file({key: 0.9 * tensor for key, tensor in weights.items()}, files / other)

    def experts(plan: dict[str, int] | None) -> dict:
        made = prompt(name, plan, group=GROUPS_BY_SIZE[2])
        (high,) = [node for node, inputs in made.items() if inputs["class_type"] == "KSampler"]
        inputs = made[high]["inputs"]
        made["low"] = {"class_type": "UNETLoader", "inputs": {"unet_name": other, "weight_dtype": "default"}}
        low = ["low", 0]
        if plan is not None:
            node = made[inputs["model"][0]]
            made["parallel low"] = {**node, "inputs": {**node["inputs"], "model": low}}
            low = ["parallel low", 0]
        common = {key: value for key, value in inputs.items() if key not in ("seed", "denoise")}
        common |= {"noise_seed": 7, "steps": 4}
        first = {"add_noise": "enable", "start_at_step": 0, "end_at_step": 2, "return_with_leftover_noise": "enable"}
        rest = {"add_noise": "disable", "start_at_step": 2, "end_at_step": 9, "return_with_leftover_noise": "disable"}
        made["first"] = {"class_type": "KSamplerAdvanced", "inputs": common | first}
        made[high] = {"class_type": "KSamplerAdvanced", "inputs": common | rest}
        made[high]["inputs"] |= {"model": low, "latent_image": ["first", 0]}
        return made

    right = latents(host, experts(None))
    assert relative_error(right, latents(host, prompt(name))) > 0.01, "the second expert changes nothing"
    assert relative_error(latents(host, experts({"ulysses": 2})), right) <= TOLERANCE


def write_lora(name: str, models: Path) -> str:
    """A LoRA of the case's matrices."""
    weights = {
        f"{layer}.weight": weight
        for key, whole in load_file(models / f"models/diffusion_models/{name}.safetensors").items()
        if key.endswith(".weight") and whole.ndim == 2
        for layer, weight in LORAS[name](key.removesuffix(".weight"), whole)
    }
    save_file(make_lora(weights, str), models / "models" / "loras" / f"{name}.safetensors")
    return f"{name}.safetensors"


@pytest.mark.parametrize("name", LORAS)
def test_a_lora_draws_what_it_draws_with_the_stock_loader(
    name: str, host: ComfyHost, stock: Callable, models: Path
) -> None:
    before = stock(name)
    adapted = with_lora(write_lora(name, models))
    right = latents(host, prompt(name, patch=adapted))
    assert relative_error(right, before) > 0.01, "the LoRA changes nothing"
    assert relative_error(latents(host, prompt(name, patch=adapted, **ON_TWO)), right) <= TOLERANCE


@pytest.mark.parametrize("what", GIVEN)
def test_conditioning_that_few_models_take_reaches_the_class(
    what: str, host: ComfyHost, files: Path, models: Path
) -> None:
    name, tensors = GIVEN[what]
    text = load_file(models / "input" / f"{name} positive.safetensors")
    save_file({**text, **tensors}, models / "input" / f"{name} {what}.safetensors")
    right = latents(host, prompt(name, positive=what))
    drawn = latents(host, prompt(name, positive=what, **ON_TWO))
    assert relative_error(drawn, right) <= TOLERANCE


# The shift of ComfyUI's sampling of a case; each plan is exact.
SAMPLED = [
    pytest.param(name, shift, plan, id=f"{name}-{plan}")
    for name, shift, plans in (
        ("longcat-image", math.exp(1.15), [*SYNCHRONOUS, {"cfg": 1}, {"cfg": 2}, {"ulysses": 2}]),
        ("wan-2.1-vace", 8.0, [{"cfg": 1}, {"ring": 2}]),
    )
    for plan in plans
]


def shifted(shift: float) -> list[float]:
    """The sigmas of Euler flow, as diffusers defines them: from 1 to 1 / steps, shifted, and 0."""
    return [shift * (left := 1 - step / STEPS) / (1 + (shift - 1) * left) for step in range(STEPS)] + [0.0]


@pytest.mark.parametrize(("name", "shift", "plan"), SAMPLED)
def test_the_parallel_sampler_is_the_stock_euler_over_its_sigmas(
    name: str, shift: float, plan: dict[str, int], host: ComfyHost, files: Path
) -> None:
    size = EVEN if "patches" in plan else ()
    right = latents(host, stock_prompts.prompt(name, sigmas=shifted(shift), size=size))
    degrees = {axis: degree for axis, degree in plan.items() if axis not in ("patches", "sync_steps")}
    group = GROUPS_BY_SIZE[math.prod(degrees.values())]
    asked = stock_prompts.prompt(name, plan, group=group, scheduler="model's own", size=size)
    assert relative_error(latents(host, asked), right) <= TOLERANCE


def test_with_dynamicvram_small_layers_stay_as_they_are_in_the_file(comfyui: Path, files: Path) -> None:
    """A ComfyUI on a card of NVIDIA's rounds only layers of more than 16 KB to the model's dtype, here fp8."""
    run_program(comfyui, "tests.support.files.quantise", files / f"{QUANTISED}.safetensors", "plain fp8")
    file = files / f"{QUANTISED}-plain fp8.safetensors"
    stored, layers = load_file(file), Counter[str]()
    for name, weight in stored.items():
        layers[name.rpartition(".")[0]] += weight.nbytes
    rounded, kept = run_program(comfyui, "tests.support.files.told:small_layers", file)
    assert {dtype for dtype, _ in rounded.values()} == {"float8_e4m3fn"}
    small = {name for name in stored if layers[name.rpartition(".")[0]] <= 16384}
    assert {name for name, (_, same) in kept.items() if same} == small | {
        name for name, weight in stored.items() if weight.dtype == torch.float8_e4m3fn
    }
    assert {dtype for name, (dtype, _) in kept.items() if name not in small} == {"float8_e4m3fn"}
    source = (comfyui / "comfy" / "model_patcher.py").read_text()
    assert "module_mem > 16 * 1024" in source, "ComfyUI's rule is another"


def test_an_adapter_for_another_model_changes_nothing_and_is_told_of(host: ComfyHost, files: Path) -> None:
    tensors = {f"diffusion_model.elsewhere.lora_{end}.weight": torch.ones(4, 4) for end in ("up", "down")}
    save_file(tensors, files.parent / "loras" / "elsewhere.safetensors")

    plain = latents(host, prompt(QUANTISED, **ON_TWO))
    assert torch.equal(latents(host, prompt(QUANTISED, **ON_TWO, patch=with_lora("elsewhere.safetensors"))), plain)
    assert "This LoRA changes nothing: none of its keys is a weight of the model." in host.log.read_text()
