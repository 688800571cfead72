"""A diffusers pipeline in a plain script: the same images on several ranks, by the pipeline's own call."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from parallel_backend import ParallelPlan, parallelize, start_distributed
from parallel_backend.weights.folder import transformer_source
from parallel_backend.weights.loading import build_transformer, load_weights
from tests.support.cases.families import FAMILIES, UNEVEN
from tests.support.cases.library_cases import (
    CALLS,
    COSMOS_1,
    SDXL_UNET,
    SEED,
    shape_name,
    unet,
    unet_inputs,
)
from tests.support.cases.references import plain_diffusers, relative_error
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

TOLERANCE = 1e-5


def ranks_of(case: dict) -> int:
    return ParallelPlan(**case["plan"]).world_size


def case(call: str, batch: int = 1, seeded: bool = True, twice: bool = False, vae: bool = False, **plan: Any) -> dict:
    note = ("" if seeded else ", unseeded") + (", second call" if twice else "") + (", VAE" if vae else "")
    name = f"{call}, batch {batch}{note}, {json.dumps(plan)}"
    return {"name": name, "call": call, "batch": batch, "seeded": seeded, "twice": twice, "vae": vae, "plan": plan}


TWICE = ("Flux, two forwards", "Qwen-Image", "Chroma", "Wan 2.2")
CASES = [
    *[case("DiT", 1, **plan) for plan in ({"ulysses": 2}, {"ring": 2}, {"cfg": 2}, {"cfg": 2, "ulysses": 2})],
    *[case("DiT", 3, dp=2), case("DiT", 3, dp=2, cfg=2), case("DiT", 1, seeded=False, cfg=2)],
    *[case("DiT", 1, vae=True, ulysses=2), case("DiT", 3, vae=True, dp=2, cfg=2)],
    *[case("PixArt", 1, **plan) for plan in ({"ulysses": 2}, {"cfg": 2}, {"cfg": 2, "ring": 2})],
    *[case("PixArt", 3, dp=2), case("PixArt", 2, dp=2, cfg=2)],
    *[case("SD3", 1, **plan) for plan in ({"ring": 2}, {"cfg": 2}, {"cfg": 2, "ulysses": 2})],
    case("SD3", 3, dp=2),
    *[case("Qwen-Image", 3, **plan) for plan in ({"ulysses": 2}, {"dp": 2}, {"dp": 2, "ring": 2})],
    *[case("Flux", 1, **plan) for plan in ({"ulysses": 2}, {"ring": 2, "ulysses": 2}, {"dp": 2}, {"dp": 4})],
    *[case("Flux", 3, dp=2), case("Flux", 3, dp=2, twice=True), case("Flux", 1, seeded=False, ulysses=2)],
    *[case("Flux, two forwards", 3, dp=2), case("Flux, two forwards", 1, ulysses=2)],
    *[
        case("Chroma", 1, ulysses=2),
        case("Chroma", 3, dp=2),
        case("Flux.2", 1, ulysses=2),
        case("Flux.2", 3, dp=2, ring=2),
    ],
    *[case("Z-Image", 1, ulysses=2), case("Z-Image", 1, cfg=2), case("Z-Image", 3, dp=2, ring=2)],
    *[case("Flux", batch, dp=2, ulysses=2, speeds=[1, 0.5, 0.2, 0.2]) for batch in (1, 3)],
    *[case("Flux, as many tokens as rows", 4, dp=2), case("Flux, as many tokens as rows", 4, dp=2, ulysses=2)],
    *[case("Stable Diffusion", 1, vae=True, **plan) for plan in ({"ulysses": 2}, {"ring": 2}, {"cfg": 2, "ring": 2})],
    *[case("Stable Diffusion", 3, dp=2), case("Stable Diffusion", 3, ring=4)],
    *[case("SDXL", 1, ulysses=2), case("SDXL", 1, ring=2), case("SDXL", 2, cfg=2), case("SDXL", 3, dp=2)],
    *[case("SDXL", 3, vae=True, ulysses=2, ring=2), case("SDXL", 1, cfg=2, ulysses=2, speeds=[1, 0.5, 1, 0.5])],
    *[case("Flux with adapters", 1, **plan) for plan in ({"ulysses": 2}, {"pipefusion": 2, "patches": 1})],
    case("SDXL with adapters", 1, ulysses=2),
    *[case(call, 3, pipefusion=2, patches=1) for call in ("DiT", "Z-Image")],  # stages alone are exact
    case("Qwen-Image", 1, pipefusion=2, patches=1, cfg=2),
    *[case("SD3", 1, cfg=2, weights=weights) for weights in ("shared", "host")],
    case("Flux", 1, pipefusion=2, patches=1, ulysses=2, weights="shared"),
    *[case(call, 1, cfg=2) for call in TWICE],
    *[case("Flux, two forwards", 3, dp=2, cfg=2), case("Qwen-Image", 1, cfg=2, ulysses=2)],
]
SLOW = [case("Flux", 1, ulysses=2, compile="on")]
REFUSED = {
    "another world size": ("PlanError", "a world size of 4, and torchrun started 2"),
    "another world size, loading": ("PlanError", "a world size of 1, and torchrun started 2"),
    "no folder": ("ModelFileError", "nowhere/transformer/config.json"),
    "heads": ("PlanError", "ulysses=2 is more than the model's 1 heads"),
    "no transformer": ("RequestError", "DDPMPipeline has no transformer or UNet"),
    "unknown transformer": ("UnknownModelError", "Linear"),
    "twice": ("RequestError", "parallel already"),
    "an unknown layer of a UNet": ("PlanError", "is of the class AttnDownBlock2D (diffusers"),
    "fetched weights of a UNet": ("PlanError", "the blocks of UNet2DConditionModel are not known here"),
    "a UNet in stages": ("PlanError", "they skip from the first half to the second"),
    "ControlNet of a UNet": ("RequestError", "was called with mid_block_additional_residual"),
    "no VAE": ("RequestError", "no VAE to make parallel"),
    "prompts of its own": ("RequestError", "different"),
    "words of its own": ("RequestError", "different input_ids"),
    "images elsewhere": ("RequestError", "Use all or first"),
    "compiled": ("RequestError", "compiled by itself (as a whole)"),
    "a block compiled later": ("RequestError", "compiled by itself (transformer_blocks.1)"),
    "cast": ("RequestError", "cannot be cast to torch.float16"),
    "a model for another plan": ("RequestError", "for the plan ulysses=2, and this one is cfg=2"),
    "noise of its own": ("RequestError", "different hidden_states"),
    "skipped layers": ("RequestError", "skip_layers"),
    "IP-Adapter": ("RequestError", "ip_adapter_image_embeds"),
}


class Found(NamedTuple):
    """images: by world size and name, of the cases that run. told: of each of two ranks, what failed or was refused."""

    images: dict[int, dict[str, torch.Tensor]]
    told: list[dict[str, dict[str, str]]]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Found:
    root, found = tmp_path_factory.mktemp("library"), {}
    cases = [case for (case,) in running(request, "case")]
    for world in (2, 4):
        own = [case for case in cases if ranks_of(case) == world]
        found[world] = ranks.run(world, "library.library_ranks", str(root), own)
    return Found({world: by_rank[0][1] for world, by_rank in found.items()}, [told for told, _ in found[2]])


@cache
def plain(call: str, batch: int, seeded: bool) -> torch.Tensor:
    """What the pipeline returns in one process."""
    generator = torch.Generator().manual_seed(SEED) if seeded else None
    pipeline = CALLS[call].pipeline()
    torch.manual_seed(SEED)
    return CALLS[call].run(pipeline, batch, generator)


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)], ids=lambda case: case["name"]
)
def test_a_parallel_pipeline_returns_the_plain_pipelines_images(case: dict, found: Found) -> None:
    got = found.images[ranks_of(case)][case["name"]]
    expected = plain(case["call"], case["batch"], case["seeded"])
    assert got.shape == expected.shape
    assert relative_error(got, expected) <= TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_as_its_pipeline_calls_it_shares_out_its_batch(name: str, found: Found) -> None:
    assert found.told[0]["failed"].get(name) is None
    expected = plain_diffusers(name, shape_name(name))
    assert relative_error(found.images[2][name], expected) <= TOLERANCE


@torch.no_grad()
def test_cosmos_1_as_its_pipeline_calls_it_shares_tokens(found: Found) -> None:
    expected = COSMOS_1.reference(COSMOS_1.build(), *COSMOS_1.inputs(*COSMOS_1.shapes[UNEVEN]))
    assert relative_error(found.images[2]["Cosmos 1"], expected) <= TOLERANCE


@torch.no_grad()
def test_a_unet_of_a_folder_predicts_in_bands_what_it_does_alone(found: Found) -> None:
    expected = unet(**SDXL_UNET)(**unet_inputs(2)).sample
    assert relative_error(found.images[2]["UNet of a folder"], expected) <= TOLERANCE


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_on_every_rank_alike(name: str, found: Found) -> None:
    told = [each["refused"][name] for each in found.told]
    kind, reason = REFUSED[name]
    assert told[0] == told[1]
    assert told[0].startswith(f"{kind}: ") and reason in told[0]


def test_a_script_may_compile_blocks_whose_tokens_are_not_shared(found: Found) -> None:
    assert [each["refused"]["a block compiled whose tokens are whole"] for each in found.told] == ["nothing"] * 2


def test_a_folder_from_before_diffusers_030_with_its_weights_in_several_files_is_loaded(tmp_path: Path) -> None:
    model = FAMILIES["pixart-alpha"].build()
    model.save_pretrained(tmp_path / "transformer", max_shard_size="500KB")
    config = tmp_path / "transformer" / "config.json"
    config.write_text(config.read_text().replace("PixArtTransformer2DModel", "Transformer2DModel"))
    source = transformer_source(tmp_path)
    assert source.model_class == "PixArtTransformer2DModel" and len(source.files) > 1
    loaded = build_transformer(source)
    load_weights(loaded, source, torch.device("cpu"))
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_script_that_torchrun_did_not_start_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(RuntimeError, match="torchrun --nproc-per-node"):
        start_distributed("cpu")
    with pytest.raises(RuntimeError, match="Call start_distributed"):
        parallelize(CALLS["Flux"].pipeline(), ParallelPlan())
