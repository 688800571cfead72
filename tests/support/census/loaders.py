"""A detector, which is not sampled from; and *Parallelize Model* behind other nodes, which may keep ranks from reading
the model."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.support.census.habits import HABITS
from tests.support.census.loading import is_ours
from tests.support.census.rows import ROWS, Row, as_stock, detects, equal, habit


def boxes(census: Any, row: Row, model: Any) -> torch.Tensor:
    """What a detector finds, as numbers."""
    (found,) = census.run(
        "RTDETR_detect", model=model, image=census.a_image(row, model), threshold=0.0, class_name="all",
        max_detections=3,
    )  # fmt: skip
    return torch.tensor([value for box in found[0] for value in box.values() if isinstance(value, float)])


def by_both_loaders(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """Of Load Diffusion Model and of Load Checkpoint. The settings may ask for an error instead."""
    name = f"{row.model}.safetensors"
    path = census.base / "models" / "diffusion_models" / name
    checkpoint = census.base / "models" / "checkpoints" / name
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    with safe_open(path, "pt") as file:
        weights = {f"model.diffusion_model.{key}": file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        save_file(weights, checkpoint, file.metadata())
    of_checkpoint = census.run("CheckpointLoaderSimple", ckpt_name=name)[0]
    if census.taken:
        census.said.clear()
        for each in (model, of_checkpoint):
            check_stays(census, row, each, "holds a detector")
    return [boxes(census, row, of_checkpoint)]  # which takes a second for each picture


def check_stays(census: Any, row: Row, model: Any, words: str) -> None:
    """The node gives back the very MODEL that it got, and says why. The settings may ask for an error instead."""
    assert census.parallelize(row, model) is model and words in census.why[0], census.why
    object.__setattr__(census.group.settings, "when_not_parallel", "refuse")
    try:
        census.parallelize(row, model)
    except importlib.import_module("pack.parallel_backend.errors").Explained as error:
        assert words in str(error)
    else:
        raise AssertionError("it ran, where errors are wanted")
    finally:
        object.__setattr__(census.group.settings, "when_not_parallel", "run")
        census.said.clear()  # it is compared above


DETECTOR_ROWS = {"RTDETR_detect": habit(detects("detector", "RT_DETR_v4"), by_both_loaders, said="")}


# Nodes that change a MODEL. In their own rows the node stands before them, in these behind them.
BY_THEIR_NAMES = (
    "LoraLoaderModelOnly", "ModelMergeSimple", "ModelSamplingFlux", "RescaleCFG", "EasyCache", "NAGuidance", "FreeU",
    "QwenImageDiffsynthControlnet", "a merge: three models", "a pack's first-block cache on Wan",
    "a pack's hook in a quantised file",
)  # fmt: skip
# What packs change in the module, and not on the MODEL: behind that, the node says so.
CHANGED = "A node before this one has changed the model itself, not its MODEL alone ({})."
BLOCK = "diffusion_model.double_blocks.0"
IN_THE_MODULE = {
    "a hook": CHANGED.format("diffusion_model.single_blocks.0"),
    "a block": CHANGED.format(f"{BLOCK}, {BLOCK}.img_mod, {BLOCK}.img_mod.lin"),
    "forward_orig": CHANGED.format("diffusion_model.forward_orig"),
}
SAID = (
    "flux.safetensors runs as stock, on ComfyUI's own device alone. {} Put Parallelize Model before the node that does "
    "this."
)
EVERY = {**ROWS, **HABITS}


def with_copies(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A MODEL that has copies on other devices, which the ranks cannot read, stays as it is."""
    if census.places_node:
        model.additional_models["multigpu"] = []
        check_stays(census, row, model, "MultiGPU CFG Split")
    found = [census.sample(row, model)]
    census.said.clear()  # it is compared above
    return found


def two_in_a_row(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """The second one's plan counts, also for what stands between them; the first one's MODEL keeps its own."""
    adapted = census.adapt(row, model, 0.7)
    if not is_ours(model):
        return [census.sample(row, adapted), census.sample(row, adapted)]
    second = census.parallelize(replace(row, plan={"cfg": 2}), adapted)
    assert census.said == ["This node's plan replaces the plan of the node before it, ulysses=2."], census.said
    census.said.clear()
    found = []
    for each, plan in ((adapted, "ulysses=2"), (second, "cfg=2")):
        census.remote = each.remote_module
        census.plans.clear()
        found.append(census.sample(row, each))
        assert census.plans and {*census.plans} == {plan}, census.plans
    return found


NODE_ROWS: dict[str, Row] = {
    **{f"{name}, before Parallelize Model": replace(EVERY[name], node=name, last=True) for name in BY_THEIR_NAMES},
    **{
        f"{name}, before Parallelize Model": replace(EVERY[name], last=True, said=SAID.format(said))
        for name, said in IN_THE_MODULE.items()
    },
    "a MODEL with copies, before Parallelize Model": habit(as_stock(), with_copies, last=True, ignored=True),
    "two Parallelize Model in a row": habit(equal(), two_in_a_row),
}
