"""The stock Load LoRA nodes behind Parallelize Model: the image that they give without it, and the base again.
`test_host_files.py` has more kinds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

from demo.host import ComfyHost
from tests.conftest import write_file
from tests.support.cases.families import FAMILIES
from tests.support.cases.files.single_file_cases import FILES, PUBLISHED, diffusers_weights, original
from tests.support.host.graphs import Graph, Job, Link, Patch, latents, ranks, relative_error, status
from tests.support.loaders import bypass

pytestmark = pytest.mark.usefixtures("groups_by_size")

STOCK_TOLERANCE = 1e-4
TEXT = {"positive": "text.safetensors", "negative": "other-text.safetensors"}
RANK = 4
Names = Callable[[str], str]  # of a layer, without .weight

Tensors = dict[str, torch.Tensor]


def low_rank(weights: Tensors, seed: int, up: str, down: str, names: Names, alpha: float | None = None) -> Tensors:
    """A LoRA for every matrix of these weights, of about a third of their size."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for key in sorted(weights):
        weight, name = weights[key], names(key.removesuffix(".weight"))
        if weight.ndim not in (2, 4) or not key.endswith(".weight"):
            continue
        size = (float(weight.std()) / 3 / RANK**0.5) ** 0.5
        tensors[name + up] = size * torch.randn(len(weight), RANK, *[1] * (weight.ndim - 2), generator=generator)
        tensors[name + down] = size * torch.randn(RANK, *weight.shape[1:], generator=generator)
        if alpha:
            tensors[f"{name}.alpha"] = torch.tensor(alpha)
    return tensors


def original_names(layer: str) -> str:
    return f"diffusion_model.{layer}"


def kohya_names(layer: str) -> str:
    return f"lora_unet_{layer.replace('.', '_')}"


def peft_names(layer: str) -> str:
    return f"transformer.{layer}"


# By what they are called: from which weights, and in which words.
KINDS: dict[str, Callable[[str], Tensors]] = {
    "original": lambda name: low_rank(original(name), 1, ".lora_B.weight", ".lora_A.weight", original_names),
    "kohya": lambda name: low_rank(original(name), 2, ".lora_up.weight", ".lora_down.weight", kohya_names, alpha=6.0),
    "peft": lambda name: low_rank(diffusers_weights(name), 3, ".lora_B.weight", ".lora_A.weight", peft_names),
}


def written(models: Path, name: str, kind: str) -> str:
    """The LoRA's file, which is written where it is not there yet."""
    path = models / "models" / "loras" / f"{name}, {kind}.safetensors"
    if not path.exists():
        save_file({key: value.contiguous() for key, value in KINDS[kind](name).items()}, path)
    return path.name


@pytest.fixture(scope="module")
def files(models: Path) -> Path:
    """The base folder, with the models and the LoRA that the tests here name."""
    for name in PUBLISHED:
        path = models / "models" / "diffusion_models" / f"{name}, original.safetensors"
        if not path.exists():
            save_file({key: value.clone().contiguous() for key, value in FILES["original"](name).items()}, path)
        for kind in KINDS:
            written(models, name, kind)
    return models


def job(name: str, **changes: object) -> Job:
    call = Job(f"{name}, original.safetensors", **TEXT, seed=3, cfg=PUBLISHED[name].cfg, width=128, height=96)
    return replace(call, **{"plan": {"cfg": 1}, "group": None, **changes})


Stack = tuple[tuple[str, float], ...]  # LoRA in the order of their nodes, with strengths


def with_lora(name: str, stack: Stack) -> Patch:
    def add(graph: Graph, model: Link) -> Link:
        for kind, strength in stack:
            file = f"{name}, {kind}.safetensors"
            model = graph.add("LoraLoaderModelOnly", model=model, lora_name=file, strength_model=strength)
        return model

    return add


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: Path) -> Callable[[str, Stack], torch.Tensor]:
    """What ComfyUI's own model code samples with a stack of LoRA."""
    return cache(lambda name, stack: latents(host, bypass(job(name).prompt(with_lora(name, stack)))))


STACKS: dict[str, Stack] = {
    "original names": (("original", 0.8),),
    "stacked": (("original", 0.8), ("peft", 0.5), ("kohya", -0.3)),
}


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("sd3.5", {"cfg": 1, "ulysses": 2}),
        ("flux-dev", {"cfg": 1, "ulysses": 2}),
        ("flux-dev", {"cfg": 1, "ulysses": 2, "weights": "shared"}),
        ("sd3", {"cfg": 2}),
        ("sd3", {"cfg": 1}),
    ],
    ids=str,
)
def test_a_lora_draws_what_it_draws_with_the_stock_loader(
    name: str, plan: dict[str, int], host: ComfyHost, stock: Callable
) -> None:
    """Three, by names of every kind, of which one is taken away."""
    right = stock(name, STACKS["stacked"])
    assert relative_error(right, stock(name, ())) > 0.01, "the LoRA change nothing"
    sampled = latents(host, job(name, plan=plan).prompt(with_lora(name, STACKS["stacked"])))
    assert relative_error(sampled, right) <= STOCK_TOLERANCE


@pytest.mark.parametrize("name", ["sd3.5", "flux-dev"])
def test_stages_with_some_of_the_layers_apply_what_is_theirs(name: str, host: ComfyHost, files: Path) -> None:
    """With synchronous steps alone, PipeFusion computes what one rank does."""
    patch = with_lora(name, STACKS["stacked"])
    one = job(name, scheduler="Euler flow")
    staged = replace(one, plan={"cfg": 1, "pipefusion": 2, "patches": 2, "sync_steps": one.steps})
    right = latents(host, one.prompt(patch))
    assert relative_error(right, latents(host, one.prompt())) > 0.01
    assert relative_error(latents(host, staged.prompt(patch)), right) <= STOCK_TOLERANCE


@pytest.mark.parametrize(("name", "plan"), [("sd3.5", {"cfg": 1}), ("flux-dev", {"cfg": 1, "ulysses": 2})], ids=str)
def test_another_strength_and_its_removal_load_no_model(
    name: str, plan: dict[str, int], host: ComfyHost, files: Path, stock: Callable
) -> None:
    stacks = [(("original", strength),) for strength in (0.8, 0.3)]
    right = [stock(name, stack) for stack in stacks]
    call = job(name, plan=plan)
    plain = latents(host, call.prompt())
    before = status(host, call.worker_group)["counts"]
    for stack, expected in zip(stacks, right, strict=True):
        assert relative_error(latents(host, call.prompt(with_lora(name, stack))), expected) <= STOCK_TOLERANCE
    assert torch.equal(latents(host, call.prompt()), plain)
    counts = status(host, call.worker_group)["counts"]
    assert counts["load"] == before["load"]
    assert counts["patch"] == before["patch"] + 3
    assert counts["call"] == before["call"] + 3 * call.steps, "a result of the host's cache"


def test_models_with_and_without_a_lora_run_in_one_graph(host: ComfyHost, files: Path, stock: Callable) -> None:
    """Clones share the model, and each has its own list."""
    stack = STACKS["original names"]
    right = torch.cat([stock("sd3", chosen) for chosen in (stack, (), stack[:1])])
    call = job("sd3")
    graph = Graph()
    graph.prompt = call.prompt()
    (sampler,) = [key for key, node in graph.prompt.items() if node["class_type"] == "KSampler"]
    (saver,) = [node for node in graph.prompt.values() if node["class_type"] == "SaveLatent"]
    inputs = graph.prompt[sampler]["inputs"]
    adapted = with_lora("sd3", stack)(graph, inputs["model"])
    first = graph.add("KSampler", **{**inputs, "model": adapted})
    plain = graph.add("LatentBatch", samples1=first, samples2=[sampler, 0])
    scaled = graph.add("RescaleCFG", model=adapted, multiplier=0.0)
    last = graph.add("KSampler", **{**inputs, "model": scaled})
    saver["inputs"]["samples"] = graph.add("LatentBatch", samples1=plain, samples2=last)
    assert relative_error(latents(host, graph.prompt), right) <= STOCK_TOLERANCE


@pytest.mark.parametrize(
    ("model", "family", "names", "plan"),
    [
        ("tiny-dit", "dit", original_names, {"cfg": 1, "ulysses": 2}),
        ("tiny-pixart-alpha.safetensors", "pixart-alpha", peft_names, {"cfg": 2}),
        ("tiny-pixart-alpha.safetensors", "pixart-alpha", peft_names, {"cfg": 1, "ulysses": 2}),
    ],
    ids=["dit, ulysses", "pixart, cfg", "pixart, ulysses"],
)
def test_a_lora_draws_what_a_model_with_merged_weights_draws(
    model: str, family: str, names: Names, plan: dict[str, int], host: ComfyHost, models: Path
) -> None:
    weights = FAMILIES[family].build().state_dict()
    lora = low_rank(weights, 4, ".lora_B.weight", ".lora_A.weight", names)
    save_file(lora, models / "models" / "loras" / f"{model}, merged.safetensors")
    for key, weight in weights.items():
        layer = names(key.removesuffix(".weight"))
        if f"{layer}.lora_B.weight" in lora:
            up, down = lora[f"{layer}.lora_B.weight"], lora[f"{layer}.lora_A.weight"]
            weight += 0.7 * (up.flatten(1) @ down.flatten(1)).view(weight.shape)
    result = f"merged-{model}"
    if family == "dit":
        folder = models / "models" / "diffusers" / result
        shutil.copytree(models / "models" / "diffusers" / model, folder, dirs_exist_ok=True)
        save_file(weights, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    else:
        name = model.removesuffix(".safetensors")
        write_file(models / "models" / "diffusion_models", name, weights, f"merged-{name}")
    text = {} if family == "dit" else TEXT
    call = Job(model, **text, seed=3, plan=plan)
    adapted = latents(host, call.prompt(with_lora(model, (("merged", 0.7),))))
    merged = latents(host, replace(call, model=result).prompt())
    assert relative_error(merged, latents(host, call.prompt())) > 0.01
    assert relative_error(adapted, merged) <= 1e-5


def test_differences_of_weights_and_biases_are_applied(host: ComfyHost, files: Path) -> None:
    """As LyCORIS writes them for what has no rank, here for a fused matrix, its bias and a norm."""
    weights = original("sd3.5")
    layers = ("joint_blocks.0.x_block.attn.qkv", "joint_blocks.1.context_block.adaLN_modulation.1")
    differences = {f"diffusion_model.{layer}.diff": 0.3 * weights[f"{layer}.weight"] for layer in layers}
    differences |= {f"diffusion_model.{layer}.diff_b": 2 * weights[f"{layer}.bias"] for layer in layers}
    norm = "joint_blocks.0.x_block.attn.ln_q"
    differences[f"diffusion_model.{norm}.diff"] = weights[f"{norm}.weight"] / 2
    save_file(differences, files / "models" / "loras" / "sd3.5, difference.safetensors")
    patch = with_lora("sd3.5", (("difference", 1.0),))
    right = latents(host, bypass(job("sd3.5").prompt(patch)))
    assert relative_error(latents(host, job("sd3.5").prompt(patch)), right) <= STOCK_TOLERANCE


def test_a_lora_for_the_first_rows_of_a_fused_matrix_changes_these_alone(host: ComfyHost, files: Path) -> None:
    """Some are trained for q, k and v of Flux's single blocks, and not for the rest of their first matrix."""
    width = original("flux-dev")["img_in.bias"].numel()
    layer = "diffusion_model.single_blocks.0.linear1_qkv"
    generator = torch.Generator().manual_seed(9)
    shapes = {"up": (3 * width, RANK), "down": (RANK, width)}
    tensors = {
        f"{layer}.lora_{side}.weight": 0.2 * torch.randn(shape, generator=generator) for side, shape in shapes.items()
    }
    save_file(tensors, files / "models" / "loras" / "flux-dev, rows.safetensors")
    patch = with_lora("flux-dev", (("rows", 1.0),))
    right = latents(host, bypass(job("flux-dev").prompt(patch)))
    for plan in ({"cfg": 1}, {"cfg": 1, "ulysses": 2}):
        assert relative_error(latents(host, job("flux-dev", plan=plan).prompt(patch)), right) <= STOCK_TOLERANCE


def test_a_group_that_died_is_given_the_lora_again(host: ComfyHost, files: Path, stock: Callable) -> None:
    stack = STACKS["original names"]
    right = stock("sd3", stack)
    call = job("sd3")
    latents(host, call.prompt(with_lora("sd3", stack)))
    (pid,) = ranks(host, call.worker_group)
    rank = psutil.Process(pid)
    ending = [rank, rank.parent()]  # torchrun's agent
    rank.kill()
    psutil.wait_procs(ending, timeout=30)
    sampled = latents(host, replace(call, steps=call.steps).prompt(with_lora("sd3", stack)))
    assert relative_error(sampled, right) <= STOCK_TOLERANCE
