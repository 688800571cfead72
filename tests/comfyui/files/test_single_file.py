"""A checkpoint in one file, in its authors' layout or diffusers', draws what its folder and the stock loader draw."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from demo.host import REPOSITORY, ComfyHost
from parallel_backend.weights.loading import (
    LocalPart,
    ModelSource,
    TensorSlice,
    build_transformer,
    load_weights,
    read_slice,
)
from tests.conftest import write_pipeline
from tests.support.cases import original_layouts
from tests.support.cases.families import FAMILIES, Family
from tests.support.cases.original_layouts import Weights
from tests.support.cases.single_file_cases import (
    FILES,
    PUBLISHED,
    REFUSED,
    expected,
    family_with,
    in_checkpoint,
    refused,
)
from tests.support.host.graphs import Job, latents, refusal, relative_error

STOCK_TOLERANCE = 1e-4
TEXT = {"positive": "text.safetensors", "negative": "other-text.safetensors"}


@pytest.fixture(scope="module")
def found(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict | str]:
    """By file, what the loader finds in it: a ModelSource, or the words of a refusal."""
    folder = tmp_path_factory.mktemp("files")
    files = {f"{name} {kind}": make(name) for name in PUBLISHED for kind, make in FILES.items()}
    for file, weights in {**files, **{kind: refused(kind) for kind in REFUSED}}.items():
        save(weights, folder / file)
    command = [
        sys.executable,
        "-m",
        "tests.support.files.describe_files",
        str(comfyui),
        *map(str, sorted(folder.iterdir())),
    ]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


def save(weights: Weights, path: Path) -> None:
    save_file({key: value.clone().contiguous() for key, value in weights.items()}, path)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_rank_reads_the_models_weights_from_its_file(name: str, kind: str, found: dict) -> None:
    source = ModelSource.from_json(found[f"{name} {kind}"])
    model = build_transformer(source)
    load_weights(model, source, torch.device("cpu"), {})
    loaded, right = model.state_dict(), expected(name, kind)
    assert loaded.keys() == right.keys()
    for key, tensor in right.items():
        assert torch.equal(loaded[key], tensor), key


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_of_another_model_is_refused_by_name(kind: str, found: dict) -> None:
    assert isinstance(found[kind], str), "it was taken for a supported model"
    for word in (kind, *REFUSED[kind]):
        assert word in found[kind]


@pytest.mark.parametrize(
    "part", [LocalPart(0, ((1, 3), (5, 6))), LocalPart(0, ((3, 5),)), LocalPart(1, ((0, 1), (2, 4)))]
)
def test_a_rank_reads_its_part_of_swapped_halves(part: LocalPart, tmp_path: Path) -> None:
    stored = torch.arange(40.0).view(10, 4)
    save_file({"fused": stored}, tmp_path / "file")
    whole = torch.cat([stored[5:8], stored[2:5]])
    with safe_open(tmp_path / "file", framework="pt") as file:
        place = TensorSlice("fused", 2, 6, swapped=True)
        assert torch.equal(read_slice(file, place), whole)
        pieces = [whole.narrow(part.dim, start, stop - start) for start, stop in part.ranges]
        assert torch.equal(read_slice(file, place, part), torch.cat(pieces, part.dim))


def job(name: str, kind: str, models: Path, **changes: object) -> Job:
    """A sampler call on a file, which is written where it is not there yet."""
    path = models / "models" / "diffusion_models" / f"{name}, {kind}.safetensors"
    if not path.exists():
        save(FILES[kind](name), path)
    return Job(path.name, **TEXT, seed=3, cfg=PUBLISHED[name].cfg, width=128, height=96, **changes)


def through_stock(job: Job) -> dict:
    """The prompt with ComfyUI's own loader in place of ours."""
    prompt = job.prompt()
    (loader,) = [node for node in prompt.values() if node["class_type"] == "ParallelDiT_LoadDiffusionModel"]
    loader.update(class_type="UNETLoader", inputs={"unet_name": job.model, "weight_dtype": "default"})
    return prompt


@pytest.fixture(scope="module")
def stock(host: ComfyHost, models: Path) -> Callable[[str, str], torch.Tensor]:
    """The latents that ComfyUI's own model code samples from a file."""
    return cache(lambda name, kind: latents(host, through_stock(job(name, kind, models))))


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(
    ("kind", "plan", "loop_mode"),
    [
        ("original", {"cfg": 1}, False),
        ("diffusers", {"cfg": 1}, True),
        ("scaled fp8", {"cfg": 1}, True),
        ("original", {"ulysses": 2}, True),
    ],
    ids=lambda value: str(value),
)
def test_a_file_draws_what_the_stock_loader_draws(
    name: str, kind: str, plan: dict, loop_mode: bool, host: ComfyHost, models: Path, stock: Callable
) -> None:
    sampled = latents(host, job(name, kind, models, plan=plan, loop_mode=loop_mode).prompt())
    assert relative_error(sampled, stock(name, kind)) <= STOCK_TOLERANCE


@pytest.mark.parametrize("kind", ["original", "scaled fp8"])
def test_tensor_parallel_ranks_draw_the_same_from_fused_weights(
    kind: str, host: ComfyHost, models: Path, stock: Callable
) -> None:
    sampled = latents(host, job("flux-dev", kind, models, plan={"tp": 2}).prompt())
    assert relative_error(sampled, stock("flux-dev", kind)) <= STOCK_TOLERANCE


def test_fp8_weights_stay_fp8_and_the_log_says_so(host: ComfyHost, models: Path, stock: Callable) -> None:
    call = job("flux-dev", "fp8", models, plan={"cfg": 1})
    assert relative_error(latents(host, call.prompt()), stock("flux-dev", "fp8")) <= STOCK_TOLERANCE
    assert (
        f"{call.model} stores its weights in float8_e4m3fn; the ranks keep those of the blocks so"
        in host.log.read_text()
    )


def test_a_refused_file_leaves_the_ranks_in_place(host: ComfyHost, models: Path) -> None:
    save(refused("Ovis"), models / "models" / "diffusion_models" / "Ovis.safetensors")
    message = refusal(host, Job("Ovis.safetensors", **TEXT).prompt(), Job("tiny-dit"))
    assert "ComfyUI takes Ovis.safetensors for its Flux, and the weights do not fit it" in message


def pixart_with_heads_of_72(name: str) -> Family:
    """A tiny PixArt whose file tells its heads: the original layout has heads of 72 and trained for 1024 pixels."""
    return family_with(
        name,
        attention_head_dim=72,
        num_attention_heads=2,
        cross_attention_dim=144,
        sample_size=128,
        norm_eps=1e-6,
    )


@pytest.mark.parametrize("layout", ["original", "original, inside a checkpoint", "diffusers"])
@pytest.mark.parametrize("name", ["pixart-alpha", "pixart-sigma"])
def test_a_single_file_draws_what_the_folder_draws(name: str, layout: str, host: ComfyHost, models: Path) -> None:
    family = pixart_with_heads_of_72(name)
    folder = models / "models" / "diffusers" / f"{name}-72"
    if not folder.exists():
        FAMILIES[f"{name}-72"] = family
        pipeline = {"_class_name": "PixArtAlphaPipeline" if name == "pixart-alpha" else "PixArtSigmaPipeline"}
        write_pipeline(folder, f"{name}-72", pipeline)
        del FAMILIES[f"{name}-72"]
    weights = family.build().state_dict()
    if layout != "diffusers":
        weights = original_layouts.PIXART.write(weights)
        weights["y_embedder.y_embedding"] = torch.zeros(120, family.config["caption_channels"])
    if "checkpoint" in layout:
        weights = in_checkpoint(weights)
    file = f"{name}, {layout}.safetensors"
    save(weights, models / "models" / "diffusion_models" / file)

    call = Job(folder.name, **TEXT, width=512, height=512, seed=3, plan={"cfg": 2})
    from_folder = latents(host, call.prompt())
    from_file = latents(host, replace(call, model=file).prompt())
    assert relative_error(from_file, from_folder) <= 1e-6
