"""*Parallelize Model* in a running ComfyUI, behind its own loaders: what stock draws, by the ranks. The census has more
nodes before it and behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.editor.settings import ask_settings, settings_kept
from tests.support.files.adapters import make_lora
from tests.support.host.graphs import (
    GROUPS_BY_SIZE,
    STOCK,
    Graph,
    Link,
    Patch,
    behind,
    latents,
    relative_error,
    runs,
    status,
)
from tests.support.host.stock_prompts import prompt, write_cases

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
MODEL, LORA, SECOND = "longcat-image", "parallelize", "longcat-image, another"
PLANS = [{"ulysses": 2}, {"cfg": 2}]


def merged(graph: Graph, model: Link) -> Link:
    second = graph.add("UNETLoader", unet_name=f"{SECOND}.safetensors", weight_dtype="default")
    return graph.add("ModelMergeSimple", model1=model, model2=second, ratio=0.6)


def parallel(plan: dict[str, int]) -> Patch:
    return behind("ParallelDiT_Parallelize", mode="manual", group=GROUPS_BY_SIZE[2], **plan)


CHANGES: dict[str, Patch] = {
    "lora": behind("LoraLoaderModelOnly", lora_name=f"{LORA}.safetensors", strength_model=0.8),
    "sampling": behind("ModelSamplingFlux", max_shift=3.0, base_shift=2.0, width=512, height=512),
    "rescaled": behind("RescaleCFG", multiplier=0.7),
    "merged": merged,
}
# By name, what stands before the node and what behind it.
LINES = {
    "behind the loader": ((), ("lora", "sampling", "rescaled")),
    "behind a LoRA": (("lora",), ("sampling", "rescaled")),
    "behind all": (("sampling", "lora", "rescaled"), ()),
    "behind a merge": (("merged",), ("lora",)),
}


def in_turn(*patches: Patch) -> Patch:
    return lambda graph, model: reduce(lambda found, patch: patch(graph, found), patches, model)


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> Path:
    """The folder with the model, another one with other weights, a checkpoint, and a LoRA."""
    write_cases(comfyui, models, [MODEL])
    folder, generator = models / "models", torch.Generator().manual_seed(5)
    weights = load_file(folder / "diffusion_models" / f"{MODEL}.safetensors")
    others = {name: weight + 0.05 * torch.randn(weight.shape, generator=generator) for name, weight in weights.items()}
    checkpoint = {f"model.diffusion_model.{name}": weight for name, weight in weights.items()}
    for place, tensors in {
        f"loras/{LORA}": make_lora(weights), f"diffusion_models/{SECOND}": others, f"checkpoints/{MODEL}": checkpoint
    }.items():  # fmt: skip
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / f"{place}.safetensors")
    return folder


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: Path) -> Callable[..., torch.Tensor]:
    """What stock draws with these changes in turn."""
    return cache(lambda *names: latents(host, prompt(MODEL, patch=in_turn(*(CHANGES[name] for name in names)))))


def drawn(host: ComfyHost, plan: dict[str, int], before: Sequence[Patch], behind: Sequence[Patch] = ()) -> torch.Tensor:
    """What is drawn with the node in the line, by the ranks under its plan."""
    known = runs(host, GROUPS_BY_SIZE[2])
    found = latents(host, prompt(MODEL, patch=in_turn(*before, parallel(plan), *behind)))
    run, *_ = [*runs(host, GROUPS_BY_SIZE[2]), *known, None]
    assert run and run not in known, [each for each in host.log.read_text().splitlines() if STOCK in each][-1:]
    assert not run["is_stock"] and run["reason"] == "", run
    assert run["plan"] == "".join(f"{axis}={degree}" for axis, degree in plan.items())
    return found


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("line", LINES)
def test_it_draws_what_stock_draws_wherever_it_stands(
    line: str, plan: dict[str, int], host: ComfyHost, stock: Callable[..., torch.Tensor]
) -> None:
    before, behind = LINES[line]
    right = stock(*before, *behind)
    assert relative_error(right, stock()) > 1e-3, "the nodes change nothing"
    changes = ([CHANGES[name] for name in names] for names in (before, behind))
    assert relative_error(drawn(host, plan, *changes), right) <= TOLERANCE


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_it_reads_a_checkpoint(plan: dict[str, int], host: ComfyHost, stock: Callable[..., torch.Tensor]) -> None:
    asked = prompt(MODEL, patch=in_turn(CHANGES["lora"], parallel(plan)))
    (loader,) = [each for each in asked.values() if each["class_type"] == "UNETLoader"]
    loader.update(class_type="CheckpointLoaderSimple", inputs={"ckpt_name": f"{MODEL}.safetensors"})
    assert relative_error(latents(host, asked), stock("lora")) <= TOLERANCE
    assert not runs(host, GROUPS_BY_SIZE[2])[0]["is_stock"]


def test_another_strength_before_it_reads_no_file_again(host: ComfyHost, stock: Callable[..., torch.Tensor]) -> None:
    """By an automatic plan. The node runs again, and the ranks keep the model."""
    auto = behind("ParallelDiT_Parallelize", mode="auto", group=GROUPS_BY_SIZE[2])
    assert relative_error(latents(host, prompt(MODEL, patch=auto)), stock()) <= TOLERANCE
    loads = status(host, GROUPS_BY_SIZE[2])["counts"]["load"]
    found = latents(host, prompt(MODEL, patch=in_turn(CHANGES["lora"], auto)))
    assert relative_error(found, stock("lora")) <= TOLERANCE
    assert status(host, GROUPS_BY_SIZE[2])["counts"]["load"] == loads


def test_the_node_runs_again_once_the_settings_are_others(host: ComfyHost, files: Path) -> None:
    """They say on which devices and how many ranks a plan runs. Otherwise a cached MODEL would keep the former plan."""
    graph = prompt(MODEL, patch=parallel({"cfg": 2}))
    node = next(number for number, each in graph.items() if each["class_type"] == "ParallelDiT_Parallelize")

    def is_cached() -> bool:
        messages = host.run(graph)["status"]["messages"]
        return any(node in said["nodes"] for kind, said in messages if kind == "execution_cached")

    host.run(graph)
    assert is_cached()
    with settings_kept(host):
        ask_settings(host, {"silence_seconds": 25})
        assert not is_cached()
        assert is_cached()
