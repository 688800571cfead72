"""Bad input ends in an error that helps, in the node that met it, and the group serves the next prompt."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.host.graphs import Graph, Job, Link, behind, find_node, latents, refusal, write_latent

GOOD = Job("tiny-dit", steps=1)
LOOP = Job("tiny-dit", scheduler="DDIM")
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
DEMO_NAME = "demo: coloured shapes (64×64)"
LACKING = "transformer_blocks.1.attn1.to_q.weight"
Words = tuple[str, ...]  # of the error


def assert_says(message: str, *words: str) -> None:
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"


@pytest.fixture
def broken(models: Path) -> Iterator[Path]:
    """A copy of the tiny DiT, to break."""
    folder = models / "models" / "diffusers" / "broken"
    shutil.copytree(models / "models" / "diffusers" / "tiny-dit", folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def truncate(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size * 2 // 3)


def drop_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors[LACKING]
    save_file(tensors, folder / WEIGHTS)


def pickle(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "transformer" / "diffusion_pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def configured(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "transformer" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def config_of(lines: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "transformer" / "config.json").write_text(lines)


BROKEN: dict[str, tuple[Callable[[Path], object], Words]] = {
    "a truncated file": (truncate, (Path(WEIGHTS).name, "cut short or damaged", "Download it again")),
    "weights that lack a tensor": (drop_a_tensor, (LACKING, "incomplete")),
    "weights of another model than the config": (configured(attention_head_dim=32), ("shape", "do not fit")),
    "a class without a spec": (
        configured(_class_name="LattePlusTransformer4DModel"),
        ("LattePlusTransformer4DModel", "single file", "docs/scripts.md"),
    ),
    "half a config": (config_of('{"_class_name": '), ("config",)),
    "a config of a class alone": (config_of('{"_class_name": "DiTTransformer2DModel"}'), ("config",)),
    "pickled weights": (pickle, ("broken", "pickled", "refused", "safetensors")),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_folder_is_refused(how: str, host: ComfyHost, broken: Path) -> None:
    change, words = BROKEN[how]
    change(broken)
    assert_says(refusal(host, Job(broken.name).prompt(), GOOD), *words)


def test_a_model_deleted_between_prompts(host: ComfyHost, broken: Path) -> None:
    latents(host, Job(broken.name).prompt())
    shutil.rmtree(broken)
    assert_says(refusal(host, Job(broken.name).prompt(), GOOD), broken.name, "Put it there")


def test_weights_deleted_between_prompts(host: ComfyHost, broken: Path) -> None:
    latents(host, Job(broken.name).prompt())
    (broken / WEIGHTS).unlink()
    latents(host, GOOD.prompt())  # so that the ranks have to read them again
    assert_says(refusal(host, Job(broken.name).prompt(), GOOD), broken.name, "Download")


@pytest.fixture(scope="module")
def files(models: Path) -> None:
    """What the jobs name, in the input folder."""
    write_latent(models, "flux", torch.randn(1, 16, 16, 16))
    label = torch.zeros(1, 1, 11)
    label[..., 5] = float("nan")
    for name, conditioning in {"nan": label, "wide": torch.randn(1, 12, 48)}.items():
        given = {"conditioning": conditioning, "pooled": torch.zeros(1, 16)}
        save_file(given, models / "input" / f"{name}.safetensors")


def nested(prompt: dict) -> dict:
    find_node(prompt, "EmptyLatentImage").update(class_type="Test_EmptyLatent", inputs={"shape": "1 4 16 16 | 1 8 16"})
    return prompt


def blend(graph: Graph, positive: Link) -> Link:
    """Of two class labels."""
    model = graph.prompt[positive[0]]["inputs"]["model"]
    other = graph.add("ParallelDiT_ClassLabel", model=model, label="hen")
    return graph.add(
        "ConditioningAverage", conditioning_to=positive, conditioning_from=other, conditioning_to_strength=0.5
    )


def beyond_the_loop(words: str, node: str, *links: str, **inputs: object) -> tuple[dict, Words]:
    """What acts inside of ComfyUI's loop. links: the inputs of a node behind the positive text; none behind a model."""
    patch = behind(node, **inputs)
    if links:
        patch = lambda graph, text: graph.add(node, **dict.fromkeys(links, text), **inputs)  # noqa: E731
    return LOOP.prompt(**{"patch_positive" if links else "patch_model": patch}), (words, "Remove that node")


TINY_SD3 = "tiny-sd3.safetensors"
ROPE = {"scale_x": 2.0, "shift_x": 0.0, "scale_y": 1.0, "shift_y": 0.0, "scale_t": 1.0, "shift_t": 0.0}
CACHE = {"reuse_threshold": 3.0, "start_percent": 0.0, "end_percent": 1.0, "verbose": False}
INSIDE = ("cannot honour", "Remove that node")
REFUSED: dict[str, tuple[dict, Words]] = {
    "a model that is not there": (Job("no-such-model").prompt(), ("no-such-model", "Put it there")),
    "a class number above the range": (Job("tiny-dit", "10").prompt(), ("Class 10", "0 to 9")),
    "an unknown class name": (Job("tiny-dit", "golden fish").prompt(), ("'golden fish'", "goldfish")),
    "a class label on a text model": (
        Job(TINY_SD3, "goldfish", "text.safetensors").prompt(), ("DiT Class Label", "SD3", "text-encode")
    ),
    "a latent of other channels": (
        Job("tiny-dit", latent="flux.latent").prompt(), ("16, 16, 16", "4, height, width")
    ),
    "a nested latent": (nested(Job("tiny-dit").prompt()), ("several parts", "nested latent")),
    "a plan with more ranks than heads": (
        Job("tiny-dit", plan={"cfg": 1, "ulysses": 5}).prompt(), ("ulysses=5", "4 heads", "Lower it to 4 or less")
    ),
    "NaN in the class": (Job("tiny-dit", "nan.safetensors").prompt(), ("NaN", "the node that made it")),
    "a blend of two class labels": (
        GOOD.prompt(patch_positive=blend), ("averaged or blended", "one DiT Class Label")
    ),
    "a text on a class model": (
        Job("tiny-dit", "text.safetensors").prompt(), ("classes, not text", "DiT Class Label")
    ),
    "a text of another width": (Job(TINY_SD3, "wide.safetensors", "wide.safetensors").prompt(), ("48", "32")),
    "normalized attention guidance": (
        GOOD.prompt(behind("NAGuidance", nag_scale=5.0, nag_alpha=0.5, nag_tau=1.5)),
        (*INSIDE, "attn1_output_patch"),
    ),
    "RoPE scaling": (GOOD.prompt(behind("ScaleROPE", **ROPE)), (*INSIDE, "RoPE")),
    "loop: a guidance node": beyond_the_loop("guidance function", "RescaleCFG", multiplier=0.7),
    "loop: an area": beyond_the_loop(
        "an area", "ConditioningSetArea", "conditioning", width=64, height=64, x=0, y=0, strength=1.0
    ),
    "loop: a timestep range": beyond_the_loop(
        "timestep range", "ConditioningSetTimestepRange", "conditioning", start=0.0, end=0.5
    ),
    "loop: two conditionings": beyond_the_loop(
        "2 positive conditionings", "ConditioningCombine", "conditioning_1", "conditioning_2"
    ),
    "loop: a step cache": beyond_the_loop("easycache", "EasyCache", **CACHE),
    # The MODEL that a third node has wrapped in another diffusion model is no longer ours.
    "loop: another model": (
        replace(LOOP, seed=5).prompt(behind("Test_ForeignModel")), ("Put Parallelize Model before it", "KSampler")
    ),
    "loop: no positive text": (
        LOOP.prompt(patch_positive=lambda graph, _text: graph.add("Test_NoConditioning")),
        ("cannot honour an empty positive conditioning",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_and_says_why(name: str, host: ComfyHost, files: None) -> None:
    prompt, words = REFUSED[name]
    assert_says(refusal(host, prompt, GOOD), *words)


def test_only_class_conditional_dits_are_offered(host: ComfyHost, broken: Path) -> None:
    configured(_class_name="FluxTransformer2DModel")(broken)
    offered = json.dumps(host.object_info()["ParallelDiT_LoadDiT"]["input"]["required"], ensure_ascii=False)
    assert all(f'"{name}"' in offered for name in ("tiny-dit", "shapes-dit", DEMO_NAME))
    assert broken.name not in offered
    assert_says(refusal(host, Job(broken.name).prompt(), GOOD), "FluxTransformer2DModel")
