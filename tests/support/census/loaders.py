"""A detector, which is not sampled from, by the loader nodes themselves; and *Parallelize Model* behind stock nodes."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.support.census.habits import HABITS
from tests.support.census.loading import is_ours
from tests.support.census.rows import BEHIND_LOADER, BEHIND_NODE, ROWS, Row, as_stock, detects, equal, habit


def boxes(census: Any, row: Row, model: Any) -> torch.Tensor:
    """What a detector finds, as numbers."""
    (found,) = census.run(
        "RTDETR_detect", model=model, image=census.a_image(row, model), threshold=0.0, class_name="all",
        max_detections=3,
    )  # fmt: skip
    return torch.tensor([value for box in found[0] for value in box.values() if isinstance(value, float)])


def by_loader_nodes(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """By our Load Diffusion Model and our Load Checkpoint. The settings may ask for an error instead."""
    name = f"{row.model}.safetensors"
    path = census.base / "models" / "diffusion_models" / name
    checkpoint = census.base / "models" / "checkpoints" / name
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    with safe_open(path, "pt") as file:
        weights = {f"model.diffusion_model.{key}": file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        save_file(weights, checkpoint, file.metadata())
    if not census.taken:
        return [boxes(census, row, model)]
    of_model, of_checkpoint = (
        importlib.import_module(f"pack.nodes.{each}") for each in ("load_model", "load_checkpoint")
    )
    said: list[str] = []
    with (
        patch.object(of_model, "show_on_node", said.append),
        patch.object(of_model, "worker_group", lambda _group: census.group),
        patch.object(of_model, "list_models", lambda: {name: path}),
        patch.object(of_checkpoint, "list_checkpoints", lambda: {name: checkpoint}),
    ):
        nodes = of_model.LoadDiffusionModelParallel, of_checkpoint.LoadCheckpointParallel
        loads = [lambda node=node: asyncio.run(node.execute(name, "default")).result[0] for node in nodes]
        models = [load() for load in loads]
        first, second = (each.model.diffusion_model.state_dict() for each in models)
        assert first.keys() == second.keys() and all(weight.equal(second[name]) for name, weight in first.items())
        found = [boxes(census, row, models[1])]  # which takes a second for each picture
        assert len(said) == 2 and all("runs as stock, on ComfyUI's own device" in each for each in said)
        object.__setattr__(census.group.settings, "when_not_parallel", "refuse")
        try:
            for load in loads:
                try:
                    load()
                except importlib.import_module("pack.nodes.model.host_file").NoDenoiser:
                    continue
                raise AssertionError("it ran, where errors are wanted")
        finally:
            object.__setattr__(census.group.settings, "when_not_parallel", "run")
    return found


DETECTOR_ROWS = {"RTDETR_detect": habit(detects("detector"), by_loader_nodes)}


# Nodes that change a MODEL, which the node stands before and behind.
BY_THEIR_NAMES = (
    "LoraLoaderModelOnly", "ModelMergeSimple", "ModelSamplingFlux", "RescaleCFG", "EasyCache", "NAGuidance", "FreeU",
    "QwenImageDiffsynthControlnet", "TorchCompileModel", "a merge: three models", "a pack's first-block cache on Wan",
    "a pack's hook in a quantised file",
)  # fmt: skip
# What packs change in the module, and not on the MODEL: behind that, the node says so.
CHANGED = "A node before this one has changed the model itself, not its MODEL alone ({})."
BLOCK = "diffusion_model.double_blocks.0"
IN_THE_MODULE = {
    "a hook": CHANGED.format("diffusion_model.single_blocks.0"),
    "a block": CHANGED.format(f"{BLOCK}, {BLOCK}.img_mod, {BLOCK}.img_mod.lin"),
    "forward_orig": CHANGED.format("diffusion_model.forward_orig"),
    "weights written": "A node before this one has written over the model's weights (img_in.weight).",
}
SAID = (
    "flux.safetensors runs as stock, on ComfyUI's own device alone. {} Put Parallelize Model before the node that does "
    "this."
)
EVERY = {**ROWS, **HABITS}


def without_file(model: Any) -> None:
    model.cached_patcher_init = None


def with_own_operations(model: Any) -> None:
    load, (path, options) = model.cached_patcher_init
    model.cached_patcher_init = load, (path, {**options, "custom_operations": type("Operations", (), {})})


def of_a_pickle(model: Any) -> None:
    load, (_, options) = model.cached_patcher_init
    model.cached_patcher_init = load, ("models/some.ckpt", options)


def of_another_loader(model: Any) -> None:
    model.cached_patcher_init = without_file, *model.cached_patcher_init[1:]


def with_copies(model: Any) -> None:
    model.additional_models["multigpu"] = []


# By what is so of a MODEL that the ranks cannot read, what the node says.
UNREAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "names no file": (without_file, "does not say from which file"),
    "has own operations": (with_own_operations, "loaded with custom_operations"),
    "is of a pickle": (of_a_pickle, "some.ckpt is a pickle checkpoint"),
    "is of another loader": (of_another_loader, "loaded by without_file"),
    "has copies on other devices": (with_copies, "MultiGPU CFG Split"),
}


def unread(change: Callable[[Any], None], words: str) -> Callable[..., list[torch.Tensor]]:
    """The node gives back the very MODEL that it got, and says why. The settings may ask for an error instead."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        if census.places_node:
            change(model)
            assert census.parallelize(row, model) is model and words in census.why[0], census.why
            object.__setattr__(census.group.settings, "when_not_parallel", "refuse")
            try:
                census.parallelize(row, model)
            except importlib.import_module("pack.nodes.errors").Refused as error:
                assert words in str(error)
            else:
                raise AssertionError("it ran, where errors are wanted")
            finally:
                object.__setattr__(census.group.settings, "when_not_parallel", "run")
        found = [census.sample(row, model)]
        census.said.clear()  # it is compared above
        return found

    return does


def two_in_a_row(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """The second one's plan counts, also for what stands between them; the first one's MODEL keeps its own."""
    adapted = census.run("LoraLoaderModelOnly", model=model, lora_name=census.a_lora(row, model), strength_model=0.7)[0]
    if not is_ours(model):
        return [census.sample(row, adapted), census.sample(row, adapted)]
    second = census.parallelize(replace(row, plan={"cfg": 2}), adapted)
    assert census.said == ["This node's plan replaces the plan of the node before it, ulysses=2."], census.said
    census.said.clear()
    found = []
    for each, plan in ((adapted, "ulysses=2"), (second, "cfg=2")):
        census.remote = each.stand_in
        census.plans.clear()
        found.append(census.sample(row, each))
        assert census.plans and {*census.plans} == {plan}, census.plans
    return found


NODE_ROWS: dict[str, Row] = {
    **{
        f"{name}, behind Parallelize Model": replace(EVERY[name], node=name, behind=BEHIND_LOADER, slow=True)
        for name in BY_THEIR_NAMES  # in the gate, tests/comfyui/parallelize has some
    },
    **{
        f"{name}, before Parallelize Model": replace(EVERY[name], node=name, behind=BEHIND_NODE)
        for name in BY_THEIR_NAMES
    },
    **{
        f"{name}, before Parallelize Model": replace(EVERY[name], behind=BEHIND_NODE, said=SAID.format(said))
        for name, said in IN_THE_MODULE.items()
    },
    **{
        f"a MODEL that {name}, before Parallelize Model": replace(
            habit(as_stock(), unread(*said)), behind=BEHIND_NODE, ignored=True
        )
        for name, said in UNREAD.items()
    },
    "two Parallelize Model in a row": replace(habit(equal(), two_in_a_row), behind=BEHIND_LOADER),
    "Parallelize Model behind our loader": habit(equal(), two_in_a_row),
}
