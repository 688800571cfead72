"""Bad input ends in an error that helps, in the node that met it, and the group serves the next prompt."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.host.graphs import Graph, Job, Link, Patch, latents, refusal, worker_processes
from tests.support.loaders import load

GOOD = Job("tiny-dit", steps=1)
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
TEXT = {"positive": "text.safetensors", "negative": "text.safetensors"}


@pytest.fixture
def broken(models: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the tiny DiT, named after the test, to break."""
    folder = models / "models" / "diffusers" / request.node.originalname
    shutil.copytree(models / "models" / "diffusers" / "tiny-dit", folder)
    request.addfinalizer(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def assert_says(message: str, *words: str) -> None:
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"


def test_a_model_that_is_not_there(host: ComfyHost) -> None:
    assert_says(refusal(host, Job("no-such-model").prompt(), GOOD), "no-such-model", "Put it there")


def test_a_model_deleted_between_prompts(host: ComfyHost, broken: Path) -> None:
    latents(host, Job(broken.name).prompt())
    shutil.rmtree(broken)
    assert_says(refusal(host, Job(broken.name).prompt(), GOOD), broken.name, "Put it there")


def test_weights_deleted_between_prompts(host: ComfyHost, broken: Path) -> None:
    latents(host, Job(broken.name).prompt())
    (broken / WEIGHTS).unlink()
    latents(host, GOOD.prompt())  # so that the ranks have to read them again
    assert_says(refusal(host, Job(broken.name).prompt(), GOOD), broken.name, "Download")


def test_a_truncated_file_in_a_diffusers_folder(host: ComfyHost, broken: Path) -> None:
    truncate(broken / WEIGHTS)
    assert_says(
        refusal(host, Job(broken.name).prompt(), GOOD), Path(WEIGHTS).name, "cut short or damaged", "Download it again"
    )


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def test_weights_that_lack_a_tensor(host: ComfyHost, broken: Path) -> None:
    tensors = load_file(broken / WEIGHTS)
    del tensors["transformer_blocks.1.attn1.to_q.weight"]
    save_file(tensors, broken / WEIGHTS)
    assert_says(refusal(host, Job(broken.name).prompt(), GOOD), "transformer_blocks.1.attn1.to_q.weight", "incomplete")


def test_weights_of_another_model_than_the_config(host: ComfyHost, broken: Path) -> None:
    path = broken / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attention_head_dim": 32}))
    assert_says(refusal(host, Job(broken.name).prompt(), GOOD), "shape", "config")


def test_a_transformer_class_without_a_spec(host: ComfyHost, broken: Path) -> None:
    path = broken / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "_class_name": "LattePlusTransformer4DModel"}))
    assert_says(
        refusal(host, Job(broken.name).prompt(), GOOD), "LattePlusTransformer4DModel", "single file", "docs/scripts.md"
    )


@pytest.mark.parametrize("lines", ['{"_class_name": ', "[1, 2]", '{"_class_name": "DiTTransformer2DModel"}'])
def test_a_config_that_is_no_config(host: ComfyHost, broken: Path, lines: str) -> None:
    (broken / "transformer" / "config.json").write_text(lines)
    assert_says(refusal(host, Job(broken.name).prompt(), GOOD), "config")


def test_a_diffusers_folder_of_pickled_weights(host: ComfyHost, broken: Path) -> None:
    torch.save(load_file(broken / WEIGHTS), broken / "transformer" / "diffusion_pytorch_model.bin")
    (broken / WEIGHTS).unlink()
    assert_says(refusal(host, Job(broken.name).prompt(), GOOD), broken.name, "pickled", "refused", "safetensors")


@pytest.mark.parametrize("label", ["10", "-1"])
def test_a_class_number_out_of_range(host: ComfyHost, label: str) -> None:
    assert_says(refusal(host, Job("tiny-dit", label).prompt(), GOOD), f"Class {label}", "0 to 9")


def test_an_unknown_class_name_suggests_the_nearest(host: ComfyHost) -> None:
    assert_says(refusal(host, Job("tiny-dit", "golden fish").prompt(), GOOD), "'golden fish'", "goldfish")


def test_a_class_label_node_on_a_text_model(host: ComfyHost) -> None:
    message = refusal(host, Job("tiny-pixart-alpha.safetensors", "goldfish", "text.safetensors").prompt(), GOOD)
    assert_says(message, "DiT Class Label", "PixArt", "text-encode")


def test_a_latent_of_the_wrong_channel_count(host: ComfyHost, models: Path) -> None:
    latent = {"latent_tensor": torch.randn(1, 16, 16, 16), "latent_format_version_0": torch.tensor([])}
    save_file(latent, models / "input" / "flux.latent")
    assert_says(refusal(host, Job("tiny-dit", latent="flux.latent").prompt(), GOOD), "16, 16, 16", "4, height, width")


@pytest.mark.parametrize("how", [{}, {"scheduler": "DDIM"}], ids=str)
def test_a_nested_latent(how: dict, host: ComfyHost) -> None:
    prompt = Job("tiny-dit", **how).prompt()
    (latent,) = [node for node in prompt.values() if node["class_type"] == "EmptyLatentImage"]
    latent.update(class_type="Test_EmptyLatent", inputs={"shape": "1 4 16 16 | 1 8 16"})
    assert_says(refusal(host, prompt, GOOD), "several parts", "nested latent")


def test_nan_in_the_class(host: ComfyHost, models: Path) -> None:
    conditioning = torch.zeros(1, 1, 11)
    conditioning[..., 5] = float("nan")
    save_file({"conditioning": conditioning, "pooled": torch.zeros(1, 16)}, models / "input" / "nan.safetensors")
    message = refusal(host, Job("tiny-dit", "nan.safetensors").prompt(), GOOD)
    assert_says(message, "NaN", "the node that made it")


def test_a_blend_of_two_class_labels(host: ComfyHost) -> None:
    def blend(graph: Graph, positive: Link) -> Link:
        model = graph.prompt[positive[0]]["inputs"]["model"]
        other = graph.add("ParallelDiT_ClassLabel", model=model, label="hen")
        return graph.add(
            "ConditioningAverage", conditioning_to=positive, conditioning_from=other, conditioning_to_strength=0.5
        )

    assert_says(refusal(host, GOOD.prompt(patch_positive=blend), GOOD), "averaged or blended", "one DiT Class Label")


def test_a_text_conditioning_on_a_class_model(host: ComfyHost) -> None:
    message = refusal(host, Job("tiny-dit", "text.safetensors").prompt(), GOOD)
    assert_says(message, "classes, not text", "DiT Class Label")


def test_a_text_conditioning_of_another_width(host: ComfyHost, models: Path) -> None:
    save_file(
        {"conditioning": torch.randn(1, 12, 48), "pooled": torch.zeros(1, 16)}, models / "input" / "wide.safetensors"
    )
    job = Job("tiny-pixart-alpha.safetensors", "wide.safetensors", "wide.safetensors")
    assert_says(refusal(host, job.prompt(), GOOD), "48", "32")


def test_a_plan_with_more_ranks_than_heads_is_refused_before_a_rank_starts(host: ComfyHost) -> None:
    latents(host, GOOD.prompt())
    processes = worker_processes(host)
    message = refusal(host, Job("tiny-dit", plan={"cfg": 1, "ulysses": 5}).prompt(), GOOD)
    assert_says(message, "ulysses=5", "4 heads", "Lower it to 4 or less")
    assert worker_processes(host) == processes


def test_the_parallel_model_is_saved_whole(host: ComfyHost, models: Path) -> None:
    graph = Graph()
    graph.add("ModelSave", model=load(graph, "tiny-dit"), filename_prefix="saved")
    host.run(graph.prompt)
    (file,) = (models / "output").glob("saved*")
    saved = {name.removeprefix("model.diffusion_model."): tensor for name, tensor in load_file(file).items()}
    weights = load_file(models / "models" / "diffusers" / "tiny-dit" / WEIGHTS)
    assert {name: tensor for name, tensor in weights.items() if not tensor.equal(saved[name])} == {}


def patched_by(node: str, **inputs: object) -> Patch:
    return lambda graph, model: graph.add(node, model=model, **inputs)


ROPE = {"scale_x": 2.0, "shift_x": 0.0, "scale_y": 1.0, "shift_y": 0.0, "scale_t": 1.0, "shift_t": 0.0}
CACHE = {"reuse_threshold": 3.0, "start_percent": 0.0, "end_percent": 1.0, "verbose": False}
MODEL_PATCHES: dict[str, tuple[Patch, str]] = {
    "normalized attention guidance": (
        patched_by("NAGuidance", nag_scale=5.0, nag_alpha=0.5, nag_tau=1.5),
        "attn1_output_patch",
    ),
    "token merging": (patched_by("TomePatchModel", ratio=0.3), "attn1_patch"),
    "RoPE scaling": (patched_by("ScaleROPE", **ROPE), "RoPE"),
}


@pytest.mark.parametrize("patch", MODEL_PATCHES)
def test_a_patch_of_the_models_inside_is_refused_by_name(host: ComfyHost, patch: str) -> None:
    patch_model, name = MODEL_PATCHES[patch]
    assert_says(refusal(host, GOOD.prompt(patch_model), GOOD), "cannot honour", name, "Remove that node")


LOOP = Job("tiny-dit", scheduler="DDIM")
BEYOND_THE_LOOP = {
    "a guidance node": (LOOP, patched_by("RescaleCFG", multiplier=0.7), None, "guidance function"),
    "an area": (
        LOOP,
        None,
        lambda graph, cond: graph.add(
            "ConditioningSetArea", conditioning=cond, width=64, height=64, x=0, y=0, strength=1.0
        ),
        "an area",
    ),
    "a timestep range": (
        LOOP,
        None,
        lambda graph, cond: graph.add("ConditioningSetTimestepRange", conditioning=cond, start=0.0, end=0.5),
        "timestep range",
    ),
    "two conditionings": (
        LOOP,
        None,
        lambda graph, cond: graph.add("ConditioningCombine", conditioning_1=cond, conditioning_2=cond),
        "2 positive conditionings",
    ),
    "a patch of the inside": (LOOP, patched_by("ScaleROPE", **ROPE), None, "RoPE"),
    "a step cache": (LOOP, patched_by("EasyCache", **CACHE), None, "easycache"),
}


@pytest.mark.parametrize("name", BEYOND_THE_LOOP)
def test_what_acts_inside_the_hosts_loop_is_refused_by_the_parallel_sampler(host: ComfyHost, name: str) -> None:
    job, patch_model, patch_positive, words = BEYOND_THE_LOOP[name]
    assert_says(refusal(host, job.prompt(patch_model, patch_positive), GOOD), words, "Remove that node")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (replace(LOOP, scheduler="Euler flow"), ("'Euler flow'", "flow matching", "DDIM")),
        (replace(LOOP, model="tiny-sd3.safetensors", **TEXT), ("'DDIM'", "diffusion", "Euler flow")),
        (replace(LOOP, steps=1001), ("1001", "1000")),
        (replace(LOOP, width=88, height=88, plan={"pipefusion": 2}), ("11", "patch")),
        (replace(LOOP, plan={"pipefusion": 9}), ("pipefusion=9", "blocks")),
        (replace(LOOP, plan={"pipefusion": 2, "patches": 40}, width=64, height=64), ("40 patches", "16 tokens")),
        (replace(LOOP, plan={"pipefusion": 2}, scheduler=None, width=88, height=88), ("11", "patch")),
    ],
    ids=lambda value: None if isinstance(value, Job) else value[0],
)
def test_a_sampler_call_that_cannot_be(host: ComfyHost, job: Job, words: tuple[str, ...]) -> None:
    assert_says(refusal(host, job.prompt(), GOOD), *words)


def test_a_stock_model_in_the_parallel_sampler(host: ComfyHost) -> None:
    """The MODEL that a third node has wrapped in another diffusion model is no longer ours."""
    job = replace(LOOP, seed=5)
    prompt = job.prompt(lambda graph, model: graph.add("Test_ForeignModel", model=model))
    assert_says(refusal(host, prompt, GOOD), "Put Parallelize Model before it", "KSampler")
