"""What people use with a UNet draws on two ranks what it draws with the stock loader: in bands of rows, or under the
plan that the run tells."""

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
from tests.support.host.graphs import GROUPS_BY_SIZE, Graph, Link, latents, relative_error, right_half, runs
from tests.support.host.stock_prompts import prompt, write_cases
from tests.support.programs import run_program
from tests.support.tiers import slow_but

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
EFFECT = 1e-3  # what each changes at least
BANDS = {"ulysses": 2}
IN_BANDS, OF_ROWS, ALONE, AS_STOCK = "ulysses=2", "ulysses=2, cfg=2", "ulysses=2, one rank", "as stock"
RANK = 4
HEIGHT, WIDTH = 168, 264
PIXELS = {"width": WIDTH, "height": HEIGHT}
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
    write_cases(comfyui, models, {model for model, _, _ in CHANGES.values()})
    run_program(comfyui, "tests.support.files.write_controls", models / "models" / "controlnet", "sd15", "sdxl")
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


def of_regions(graph: Graph, sampler: dict[str, Any]) -> None:
    """One text for an area, and another under a mask."""
    area = {"width": 136, "height": 88, "x": 32, "y": 56, "strength": 1.0}
    first = graph.add("ConditioningSetArea", conditioning=sampler["positive"], **area)
    masked = {"mask": right_half(graph, **PIXELS), "strength": 0.7, "set_cond_area": "default"}
    second = graph.add("ConditioningSetMask", conditioning=sampler["negative"], **masked)
    sampler["positive"] = graph.add("ConditioningCombine", conditioning_1=first, conditioning_2=second)


def within_a_mask(graph: Graph, sampler: dict[str, Any]) -> None:
    inputs = {"samples": sampler["latent_image"], "mask": right_half(graph, **PIXELS)}
    sampler["latent_image"] = graph.add("SetLatentNoiseMask", **inputs)


def sampled(graph: Graph, sampler: dict[str, Any], **changes: Any) -> Link:
    return graph.add("KSampler", **{**sampler, **changes})


def larger_again(graph: Graph, sampler: dict[str, Any]) -> Link:
    """The picture made larger, and sampled again in part."""
    first = sampled(graph, sampler, seed=8)
    larger = graph.add("LatentUpscaleBy", samples=first, upscale_method="bislerp", scale_by=1.5)
    return sampled(graph, sampler, latent_image=larger, denoise=0.5)


def by_tiles(graph: Graph, sampler: dict[str, Any]) -> Link:
    """Two tiles of other heights that overlap, one after the other."""
    whole = sampled(graph, sampler, seed=8)
    for y, height in ((0, 112), (80, 88)):
        tile = graph.add("LatentCrop", samples=whole, width=WIDTH, height=height, x=0, y=y)
        tile = sampled(graph, sampler, latent_image=tile, denoise=0.5)
        whole = graph.add("LatentComposite", samples_to=whole, samples_from=tile, x=0, y=y, feather=16)
    return whole


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
SHRUNK = {"block_number": 3, "downscale_factor": 2.0, "downscale_after_skip": True}
SHRUNK |= {"downscale_method": "bicubic", "upscale_method": "bicubic"}
TILES = {"tile_size": 64, "swap_size": 2, "max_depth": 0, "scale_depth": False}
# By name: the model, the change, and the plans of the last sampling, of which the run tells why it left the first.
CHANGES: dict[str, tuple[str, Change, str]] = {
    "IP-Adapter's attention": ("sd15", behind("Test_PatchUNet", kind="attn2_replace"), IN_BANDS),
    "a longer text": ("sd15", behind("Test_PatchUNet", kind="attn2_patch"), IN_BANDS),
    "keys of the whole picture": ("sd15", behind("Test_PatchUNet", kind="attn1_patch"), ALONE),
    "a function before skips": ("sd15", behind("Test_PatchUNet", kind="output_block_patch"), IN_BANDS),
    "a function behind blocks": ("sd15", behind("Test_PatchUNet", kind="input_block_patch"), ALONE),
    "PAG": ("sd15", behind("PerturbedAttentionGuidance", scale=3.0), IN_BANDS),
    "FreeU": ("sd15", behind("FreeU_V2", b1=1.3, b2=1.4, s1=0.9, s2=0.2), IN_BANDS),
    "Deep Shrink": ("sd15", behind("PatchModelAddDownscale", **WHOLE_RUN, **SHRUNK), OF_ROWS),
    "HyperTile": ("sd15", behind("HyperTile", **TILES), AS_STOCK),
    "texts of regions": ("sd15", of_regions, IN_BANDS),
    "texts of regions on SDXL": ("sdxl", of_regions, IN_BANDS),
    "inpainting": ("sd15-inpainting", within_a_mask, IN_BANDS),
    "a mask": ("sdxl", within_a_mask, IN_BANDS),
    "a larger second pass": ("sdxl", larger_again, IN_BANDS),
    "tiles": ("sd15", by_tiles, IN_BANDS),
    "a ControlNet and a T2I adapter": ("sd15", controlled("sd15 control", "sd15 t2i"), IN_BANDS),
    "two ControlNets": ("sdxl", controlled("sdxl control", "sdxl control"), IN_BANDS),
}
# The census has most of these on another UNet. The gate has here what it does not.
GATE = ("IP-Adapter's attention", "a ControlNet and a T2I adapter")


@pytest.mark.parametrize("name", slow_but(GATE, {name: (name,) for name in CHANGES}))
def test_it_draws_what_it_draws_with_the_stock_loader(
    name: str, host: ComfyHost, stock: Callable[[str], torch.Tensor]
) -> None:
    model, change, plans = CHANGES[name]
    right = latents(host, asked(model, None, change))
    if right.shape == stock(model).shape:
        assert relative_error(right, stock(model)) > EFFECT, "it changes nothing"
    drawn = latents(host, asked(model, BANDS, change), as_stock=plans == AS_STOCK)
    run = runs(host, GROUPS_BY_SIZE[2])[0]
    found = AS_STOCK if run["is_stock"] else run["plan"]
    assert (found, bool(run["reason"])) == (plans, plans != IN_BANDS), run["reason"]
    assert (run["residuals"] > 0) == ("T2I adapter" in name), "the ranks compute ControlNets of files"
    assert relative_error(drawn, right) <= (0.0 if plans == AS_STOCK else TOLERANCE)


Random = Callable[..., torch.Tensor]


def low_rank(rows: int, columns: int, *window: int, random: Random) -> Tensors:
    return {
        ".lora_up.weight": random(rows, RANK, *[1 for _ in window]),
        ".lora_down.weight": random(RANK, columns, *window),
    }


def with_middle(rows: int, columns: int, *window: int, random: Random) -> Tensors:
    """Convolutions with a third matrix, as LoCon has them (CP decomposition)."""
    if not window:
        return low_rank(rows, columns, random=random)
    found = low_rank(rows, columns, *[1 for _ in window], random=random)
    return {**found, ".lora_mid.weight": random(RANK, RANK, *window)}


def products(rows: int, columns: int, *window: int, random: Random) -> Tensors:
    middle = {f".hada_t{place}": random(RANK, RANK, *window) for place in (1, 2)} if window else {}
    sides = {"a": (RANK, rows), "b": (RANK, columns)} if window else {"a": (rows, RANK), "b": (RANK, columns)}
    return {
        **{f".hada_w{place}_{side}": 4 * random(*shape) for place in (1, 2) for side, shape in sides.items()},
        **middle,
    }


# By kind of adapter, how one layer's is made of the shape of its weight: names behind the layer's, and tensors.
ADAPTERS: dict[str, Callable[..., Tensors]] = {
    "LoRA": low_rank,
    "LoCon": with_middle,
    "DoRA": lambda rows, columns, *window, random: {
        **low_rank(rows, columns, *window, random=random),
        ".dora_scale": 1 + random(rows, 1, *[1 for _ in window]).abs(),
    },
    "LoHa": products,
    "LoKr": lambda rows, columns, *window, random: {
        ".lokr_w1": random(4, 4), ".lokr_w2": random(rows // 4, columns // 4, *window)
    },
    "OFT": lambda rows, columns, *window, random: {".oft_blocks": random(rows // 16, 16, 16)},
    "BOFT": lambda rows, columns, *window, random: {
        ".oft_blocks": random(2, rows // 16, 16, 16), ".alpha": torch.tensor(4.0)
    },
    "GLoRA": lambda rows, columns, *window, random: {
        ".a1.weight": random(RANK, columns), ".a2.weight": random(columns, RANK),
        ".b1.weight": random(RANK, columns), ".b2.weight": random(rows, RANK),
    },
    "a difference": lambda rows, columns, *window, random: {".diff": 0.3 * random(rows, columns, *window)},
}  # fmt: skip


def write_adapter(kind: str, folder: Path, model: str) -> str:
    """One for every convolution and matrix of the blocks that it fits."""
    generator, tensors = torch.Generator().manual_seed(4), {}

    def random(*shape: int) -> torch.Tensor:
        return 0.1 * torch.randn(*shape, generator=generator)

    for key, weight in load_file(folder / "diffusion_models" / f"{model}.safetensors").items():
        is_layer = key.endswith(".weight") and "_block" in key and weight.ndim in (2, 4)
        if is_layer and not any(size % 16 for size in weight.shape[:2]):
            name = "lora_unet_" + key.removesuffix(".weight").replace(".", "_")
            made = ADAPTERS[kind](*weight.shape, random=random)
            tensors |= {name + end: tensor.contiguous() for end, tensor in made.items()}
    save_file(tensors, folder / "loras" / f"{model} {kind}.safetensors")
    return f"{model} {kind}.safetensors"


@pytest.mark.parametrize("kind", slow_but(["LoCon"], {kind: (kind,) for kind in ADAPTERS}))
def test_an_adapter_of_convolutions_and_matrices_changes_the_picture_as_with_the_stock_loader(
    kind: str, host: ComfyHost, files: Path, stock: Callable[[str], torch.Tensor]
) -> None:
    adapted = behind("LoraLoaderModelOnly", lora_name=write_adapter(kind, files, "sd15"), strength_model=0.8)
    right = latents(host, asked("sd15", None, adapted))
    assert relative_error(right, stock("sd15")) > EFFECT, "it changes nothing"
    assert relative_error(latents(host, asked("sd15", BANDS, adapted)), right) <= TOLERANCE


@pytest.mark.slow
def test_weights_in_fp8_draw_what_they_draw_with_the_stock_loader(
    host: ComfyHost, stock: Callable[[str], torch.Tensor]
) -> None:
    plain = asked("sdxl", None)
    (loader,) = [node["inputs"] for node in plain.values() if node["class_type"] == "UNETLoader"]
    loader["weight_dtype"] = "fp8_e4m3fn"
    right = latents(host, plain)
    assert relative_error(right, stock("sdxl")) > EFFECT, "the format changes nothing"
    assert relative_error(latents(host, asked("sdxl", BANDS, dtype="fp8_e4m3fn")), right) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["shared", "host"])
@pytest.mark.parametrize("name", ["sd15", "sdxl"])
def test_layers_that_are_fetched_in_each_step_draw_what_the_stock_loader_draws(
    name: str, weights: str, host: ComfyHost, stock: Callable[[str], torch.Tensor]
) -> None:
    plan = {**BANDS, "weights": weights}
    assert relative_error(latents(host, asked(name, plan)), stock(name)) <= TOLERANCE
