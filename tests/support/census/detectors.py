"""Models that are not sampled from, by the loader nodes themselves."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any
from unittest.mock import patch

import torch

from tests.support.census.rows import Row, detects, habit


def boxes(census: Any, row: Row, model: Any) -> torch.Tensor:
    """What a detector finds, as numbers."""
    (found,) = census.run(
        "RTDETR_detect", model=model, image=census.a_image(row, model), threshold=0.0, class_name="all",
        max_detections=3,
    )  # fmt: skip
    return torch.tensor([value for box in found[0] for value in box.values() if isinstance(value, float)])


def by_loader_nodes(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """By Load Diffusion Model and by Load Checkpoint, of both packs. The settings may ask for an error instead."""
    name = f"{row.model}.safetensors"
    path = census.base / "models" / "diffusion_models" / name
    checkpoint = census.base / "models" / "checkpoints" / name
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if not checkpoint.exists():
        checkpoint.symlink_to(path)
    if not census.taken:
        loaded = census.run("UNETLoader", unet_name=name, weight_dtype="default")[0]
        return [boxes(census, row, each) for each in (loaded, census.run("CheckpointLoaderSimple", ckpt_name=name)[0])]
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
        found = [boxes(census, row, load()) for load in loads]
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


DETECTOR_HABITS = {"a detector by the loader nodes": habit(detects("detector"), by_loader_nodes)}
