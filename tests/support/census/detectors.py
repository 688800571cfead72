"""A detector, which is not sampled from, by the loader nodes themselves."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any
from unittest.mock import patch

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.support.census.rows import Row, detects, habit


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
