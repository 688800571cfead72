"""A file that the ranks run by ComfyUI's own class, with Parallelize Model behind the stock loader, draws what it draws
without the node."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost, PromptError
from tests.support.cases.files.formats import FORMATS
from tests.support.cases.files.host_cases import HOST_CASES
from tests.support.host.graphs import GROUPS_BY_SIZE, Graph, Link, latents, ranks, relative_error, runs
from tests.support.host.stock_prompts import STEPS, prompt, write_cases
from tests.support.loaders import parallelize
from tests.support.programs import run_program

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
PLANS = [{"cfg": 2}, {"ulysses": 2}, {"ring": 2}]
EVEN = (1, 16, 8, 12)  # a latent that falls into patches
SYNCHRONOUS = [{"pipefusion": 2, "patches": 1}, {"pipefusion": 2, "patches": 3, "sync_steps": 10}]
QUANTISED = "longcat-image"
# Their activations are rounded: by a scale of all tokens at hand, or to 16 values, so that a last bit becomes a step.
ROUNDED = ("int8", "int8 convrot", "w4a4")
RANK = 4
# By kind of adapter, how one layer's is made of the shape of its weight: names behind the layer's, and tensors.
ADAPTERS: dict[str, Callable[[int, int, Callable], dict[str, torch.Tensor]]] = {
    "LoRA": lambda rows, columns, random: {
        ".lora_up.weight": random(rows, RANK), ".lora_down.weight": random(RANK, columns)
    },
    "DoRA": lambda rows, columns, random: {
        ".lora_up.weight": random(rows, RANK), ".lora_down.weight": random(RANK, columns),
        ".dora_scale": 1 + random(rows, 1).abs(),
    },
    "LoHa": lambda rows, columns, random: {
        ".hada_w1_a": random(rows, RANK), ".hada_w1_b": random(RANK, columns),
        ".hada_w2_a": random(rows, RANK), ".hada_w2_b": random(RANK, columns), ".alpha": torch.tensor(4.0),
    },
    "LoKr": lambda rows, columns, random: {
        ".lokr_w1": random(8, 8), ".lokr_w2": random(rows // 8, columns // 8), ".alpha": torch.tensor(4.0)
    },
    "OFT": lambda rows, columns, random: {".oft_blocks": random(rows // 16, 16, 16)},
    "BOFT": lambda rows, columns, random: {
        ".oft_blocks": random(2, rows // 16, 16, 16), ".alpha": torch.tensor(4.0)
    },
    "GLoRA": lambda rows, columns, random: {
        ".a1.weight": random(RANK, columns), ".a2.weight": random(columns, RANK),
        ".b1.weight": random(RANK, columns), ".b2.weight": random(rows, RANK),
    },
    "a difference": lambda rows, columns, random: {".diff": 0.3 * random(rows, columns)},
    "weights": lambda rows, columns, random: {".set_weight": 0.1 * random(rows, columns)},
}  # fmt: skip


def ours(name: str, plan: dict[str, int], **options: Any) -> dict:
    """A prompt with Parallelize Model, on the group of that many ranks."""
    return prompt(name, plan, group=GROUPS_BY_SIZE[math.prod(plan.values())], **options)


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> Path:
    """The folder with the models of all cases."""
    write_cases(comfyui, models, list(HOST_CASES))
    return models / "models" / "diffusion_models"


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: Path) -> Callable[[str], torch.Tensor]:
    """By case, the latents that ComfyUI's own loader's MODEL samples."""
    return cache(lambda name, model=None: latents(host, prompt(name, model=model)))


@pytest.mark.parametrize("name", HOST_CASES)
def test_one_rank_gives_the_stock_loaders_bits(name: str, host: ComfyHost, stock: Callable) -> None:
    assert torch.equal(latents(host, ours(name, {"cfg": 1})), stock(name))


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", HOST_CASES)
def test_a_file_on_ranks_draws_what_the_stock_loader_draws(
    name: str, plan: dict[str, int], host: ComfyHost, stock: Callable
) -> None:
    assert relative_error(latents(host, ours(name, plan)), stock(name)) <= TOLERANCE


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
    right = latents(host, prompt(name, sigmas=shifted(shift), size=size))
    degrees = {axis: degree for axis, degree in plan.items() if axis not in ("patches", "sync_steps")}
    group = GROUPS_BY_SIZE[math.prod(degrees.values())]
    assert (
        relative_error(latents(host, prompt(name, plan, group=group, scheduler="model's own", size=size)), right)
        <= TOLERANCE
    )


def test_pipefusion_of_a_file_is_near_the_exact_image_and_not_equal(host: ComfyHost, files: Path) -> None:
    """By the Parallel Sampler and by the stock one alike. That it is PipeFusion's own, engine/test_host_models.py
    compares with the definition."""
    sigmas = shifted(math.exp(1.15))
    shared = {"plan": {"pipefusion": 2, "patches": 3}, "group": GROUPS_BY_SIZE[2], "size": EVEN}
    exact = latents(host, prompt(QUANTISED, sigmas=sigmas, size=EVEN))
    looped = latents(host, prompt(QUANTISED, **shared, scheduler="model's own"))
    assert 1e-5 < relative_error(looped, exact) < 0.5
    assert relative_error(latents(host, prompt(QUANTISED, **shared, sigmas=sigmas)), looped) <= TOLERANCE


@pytest.fixture(scope="module")
def formats(comfyui: Path, files: Path) -> None:
    """A case in every format."""
    run_program(comfyui, "tests.support.files.quantise", files / f"{QUANTISED}.safetensors", *FORMATS)


@pytest.mark.parametrize("plan", [{"cfg": 1}, {"ulysses": 2}], ids=str)
@pytest.mark.parametrize("form", FORMATS)
def test_a_quantised_file_draws_what_the_stock_loader_draws(
    form: str, plan: dict[str, int], host: ComfyHost, stock: Callable, formats: None
) -> None:
    """To the bit on one rank. Where activations are rounded, what ranks have of them differs by less than they do from
    what is not quantised."""
    model = f"{QUANTISED}-{form}.safetensors"
    right = stock(QUANTISED, model)
    own_error = relative_error(right, stock(QUANTISED))
    assert own_error > 1e-4, "it is not quantised"
    allowed = 0.0 if plan == {"cfg": 1} else own_error if form in ROUNDED else TOLERANCE
    assert relative_error(latents(host, ours(QUANTISED, plan, model=model)), right) <= allowed


def write_adapter(kind: str, model: Path, folder: Path) -> str:
    """An adapter of that kind for every matrix of the blocks."""
    generator, tensors = torch.Generator().manual_seed(4), {}

    def random(*shape: int) -> torch.Tensor:
        return 0.4 * torch.randn(*shape, generator=generator)

    for key, weight in load_file(model).items():
        if key.endswith(".weight") and weight.ndim == 2 and "_blocks." in key:
            layer = "lora_unet_" + key.removesuffix(".weight").replace(".", "_")
            tensors |= {layer + end: tensor for end, tensor in ADAPTERS[kind](*weight.shape, random).items()}
    save_file(tensors, folder / f"{kind}.safetensors")
    return f"{kind}.safetensors"


@pytest.mark.parametrize(("kind", "form"), [*((kind, "") for kind in ADAPTERS), ("LoRA", "-fp8"), ("LoKr", "-fp8")])
def test_an_adapter_changes_the_image_as_with_the_stock_loader_and_goes_again(
    kind: str, form: str, host: ComfyHost, stock: Callable, files: Path, formats: None
) -> None:
    model = f"{QUANTISED}{form}.safetensors"
    adapter = write_adapter(kind, files / f"{QUANTISED}.safetensors", files.parent / "loras")

    def adapted(graph: Graph, loaded: Link) -> Link:
        return graph.add("LoraLoaderModelOnly", model=loaded, lora_name=adapter, strength_model=0.8)

    def drawn(patch: Callable[[Graph, Link], Link] | None) -> torch.Tensor:
        return latents(host, ours(QUANTISED, {"ulysses": 2}, model=model, patch=patch))

    right = latents(host, prompt(QUANTISED, model=model, patch=adapted))
    assert relative_error(right, stock(QUANTISED, model)) > 0.01, "the adapter changes nothing"
    assert relative_error(drawn(adapted), right) <= TOLERANCE
    assert relative_error(drawn(None), stock(QUANTISED, model)) <= TOLERANCE


def test_with_dynamicvram_small_layers_stay_as_they_are_in_the_file(comfyui: Path, files: Path, formats: None) -> None:
    """A ComfyUI on a card of NVIDIA's rounds only layers of more than 16 KB to the model's dtype, here fp8."""
    file = files / f"{QUANTISED}-plain fp8.safetensors"
    stored, layers = load_file(file), Counter[str]()
    for name, weight in stored.items():
        layers[name.rpartition(".")[0]] += weight.nbytes
    rounded, kept = json.loads(run_program(comfyui, "tests.support.files.small_layers", file))
    assert {dtype for dtype, _ in rounded.values()} == {"float8_e4m3fn"}
    small = {name for name in stored if layers[name.rpartition(".")[0]] <= 16384}
    assert {name for name, (_, same) in kept.items() if same} == small | {
        name for name, weight in stored.items() if weight.dtype == torch.float8_e4m3fn
    }
    assert {dtype for name, (dtype, _) in kept.items() if name not in small} == {"float8_e4m3fn"}
    source = (comfyui / "comfy" / "model_patcher.py").read_text()
    assert "module_mem > 16 * 1024" in source, "ComfyUI's rule is another"


def test_a_model_that_ran_on_a_card_is_still_the_files_own(comfyui: Path, files: Path, formats: None) -> None:
    """A ComfyUI on a card of NVIDIA's puts attributes on each layer, and keeps weights in the file's dtype."""
    own = [files / f"{QUANTISED}{form}.safetensors" for form in ("", *(f"-{form}" for form in FORMATS))]
    told = json.loads(run_program(comfyui, "tests.support.files.dynamic_vram", *own))
    assert told == {file.name: [] for file in own}


def merged_with(model: str, ours: bool, as_stock: bool = False) -> Callable[[Graph, Link], Link]:
    """Behind the loader, a merge with a second file. as_stock: also something that the ranks cannot run."""

    def add(graph: Graph, loaded: Link) -> Link:
        second = graph.add("UNETLoader", unet_name=f"{model}.safetensors", weight_dtype="default")
        if ours:
            second = parallelize(graph, second)
        found = graph.add("ModelMergeAdd", model1=loaded, model2=second)
        return graph.add("Test_ChangeInside", model=found, how="for the length of a call") if as_stock else found

    return add


# The formats of a first and a second model.
MERGED = [("-fp8", ""), ("-plain fp8", ""), ("", "-plain fp8")]


@pytest.mark.parametrize("place", ["one rank", "two ranks", "ComfyUI's process"])
@pytest.mark.parametrize(("first", "second"), MERGED, ids=str)
def test_a_merge_of_quantised_files_draws_what_the_stock_loader_draws(
    first: str, second: str, place: str, host: ComfyHost, stock: Callable, formats: None
) -> None:
    """To the bit, but for two ranks."""
    model, other, as_stock = f"{QUANTISED}{first}.safetensors", f"{QUANTISED}{second}", place == "ComfyUI's process"
    right = latents(host, prompt(QUANTISED, model=model, patch=merged_with(other, False, as_stock)))
    assert relative_error(right, stock(QUANTISED, model)) > 0.01, "nothing is merged"
    plan = {"ulysses": 2} if place == "two ranks" else {"cfg": 1}
    patch = merged_with(other, True, as_stock)
    found = latents(host, ours(QUANTISED, plan, model=model, patch=patch), as_stock)
    assert relative_error(found, right) <= (TOLERANCE if place == "two ranks" else 0.0)


def test_a_second_model_that_comfyui_cannot_merge_is_the_same_error(host: ComfyHost, formats: None) -> None:
    for asked in (
        prompt(QUANTISED, patch=merged_with(f"{QUANTISED}-fp8", False)),
        ours(QUANTISED, {"ulysses": 2}, patch=merged_with(f"{QUANTISED}-fp8", True)),
    ):
        with pytest.raises(PromptError, match="has no attribute 'weight_scale'"):
            host.run(asked)


def test_an_adapter_for_another_model_changes_nothing_and_is_told_of(host: ComfyHost, files: Path) -> None:
    tensors = {f"diffusion_model.elsewhere.lora_{end}.weight": torch.ones(4, 4) for end in ("up", "down")}
    save_file(tensors, files.parent / "loras" / "elsewhere.safetensors")

    def adapted(graph: Graph, loaded: Link) -> Link:
        return graph.add("LoraLoaderModelOnly", model=loaded, lora_name="elsewhere.safetensors", strength_model=1.0)

    plain = latents(host, ours(QUANTISED, {"ulysses": 2}))
    assert torch.equal(latents(host, ours(QUANTISED, {"ulysses": 2}, patch=adapted)), plain)
    assert "This LoRA changes nothing: none of its keys is a weight of the model." in host.log.read_text()


def behind(node: str, **inputs: Any) -> Callable[[Graph, Link], Link]:
    """A stock node behind the loader."""
    return lambda graph, loaded: graph.add(node, model=loaded, **inputs)


CACHED = [("EasyCache", {"cfg": 1}), ("EasyCache", {"ulysses": 2}), ("LazyCache", {"ulysses": 2})]


@pytest.mark.parametrize(("node", "plan"), CACHED, ids=str)
def test_a_wrapper_of_the_diffusion_model_runs_in_comfyui_around_the_call(
    node: str, plan: dict[str, int], host: ComfyHost, stock: Callable
) -> None:
    """EasyCache and LazyCache leave out forwards of all ranks, as many as on the stock loader's model."""

    def run(asked: dict) -> tuple[torch.Tensor, str]:
        """The latents, and what the node logs of the steps that it has left out."""
        before = len(host.log.read_text())
        made = latents(host, asked)
        (said,) = re.findall(rf"{node} - (skipped \d+/\d+ steps)", host.log.read_text()[before:])
        return made, said

    cache_all = behind(node, reuse_threshold=3.0, start_percent=0.0, end_percent=1.0, verbose=False)
    right, left_out = run(prompt(QUANTISED, patch=cache_all))
    assert not left_out.startswith("skipped 0/"), left_out
    assert relative_error(right, stock(QUANTISED)) > 1e-3, "nothing is left out"
    made, as_many = run(ours(QUANTISED, plan, patch=cache_all))
    assert as_many == left_out
    assert relative_error(made, right) <= TOLERANCE


@pytest.mark.parametrize("how", ["for the length of a call", "in attention"])
def test_comfyuis_own_model_runs_what_the_ranks_cannot(how: str, host: ComfyHost, stock: Callable) -> None:
    """`test_census.py` has what becomes of every node."""
    changed = behind("Test_ChangeInside", how=how)
    right = latents(host, prompt(QUANTISED, patch=changed))
    assert relative_error(right, stock(QUANTISED)) > 1e-3, "nothing is changed"
    latents(host, ours(QUANTISED, {"ulysses": 2}))
    found = latents(host, ours(QUANTISED, {"ulysses": 2}, patch=changed), as_stock=True)
    assert torch.equal(found, right), "not stock's bits"
    why = runs(host)[0]["reason"]
    assert "cannot run" in why and re.search(r"A step takes about .+ on one device and .+ under ulysses=2\.", why)


@pytest.mark.parametrize(
    ("plan", "scheduler"), [({"ulysses": 2}, ""), ({"cfg": 2}, ""), ({"ulysses": 2}, "model's own")], ids=str
)
def test_the_ranks_attend_by_the_kernel_that_a_node_chose(
    plan: dict[str, int], scheduler: str, host: ComfyHost, files: Path
) -> None:
    """Each kernel rounds in its own way, so other bits show that another one ran."""
    asked = partial(ours, QUANTISED, plan, scheduler=scheduler)
    plain = latents(host, asked())
    found = latents(host, asked(patch=behind("Test_ChangeInside", how="attention_split")))
    assert relative_error(found, plain) <= TOLERANCE
    assert not torch.equal(found, plain)


@pytest.mark.parametrize("plan", [{"cfg": 1}, {"ulysses": 2}], ids=str)
def test_what_the_models_own_code_raises_is_the_nodes_error_and_the_ranks_live_on(
    plan: dict[str, int], host: ComfyHost, stock: Callable, models: Path
) -> None:
    wide = {"conditioning": torch.zeros(1, 7, 99)}
    save_file(wide, models / "input" / f"{QUANTISED} wide.safetensors")
    right = latents(host, ours(QUANTISED, plan))
    group = GROUPS_BY_SIZE[math.prod(plan.values())]
    before = ranks(host, group)
    with pytest.raises(PromptError, match="The model failed: RuntimeError: mat1 and mat2 shapes cannot be multiplied"):
        host.run(ours(QUANTISED, plan, positive="wide"))
    assert torch.equal(latents(host, ours(QUANTISED, plan)), right)
    assert ranks(host, group) == before


def test_nodes_find_comfyuis_own_class_with_its_attributes_and_names(
    host: ComfyHost, stock: Callable, files: Path
) -> None:
    looked = latents(host, ours(QUANTISED, {"ulysses": 2}, patch=behind("Test_LookInside")))
    assert relative_error(looked, stock(QUANTISED)) <= TOLERANCE
