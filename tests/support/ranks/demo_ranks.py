"""`demo_ranks FOLDER INPUTS SAMPLING PLANS`: samples the demo model on the engine; returns the last stage's images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.schedulers import build_scheduler
from parallel_backend.weights.loading import ModelSource
from tests.support.family_model import Denoiser, FamilyModel


def on_ranks(
    folder: str, inputs_path: str, sampling: dict[str, Any], plans: dict[str, dict]
) -> tuple[None, dict[str, torch.Tensor]]:
    """INPUTS: a safetensors file of latents, asked and unasked labels. SAMPLING: steps, guidance, scheduler. PLANS: by
    name."""
    weights = str(Path(folder) / "transformer" / "diffusion_pytorch_model.safetensors")
    config = json.loads((Path(folder) / "transformer" / "config.json").read_text())
    source = ModelSource("DiTTransformer2DModel", config, (weights,))
    scheduler_config = json.loads((Path(folder) / "scheduler" / "scheduler_config.json").read_text())
    inputs = load_file(inputs_path)
    branches = [{"class_labels": inputs[name]} for name in ("asked", "unasked")]
    results = {}
    for name, plan in plans.items():
        mesh = build_mesh(ParallelPlan.from_json(plan), torch.device("cpu"))
        scheduler = build_scheduler(sampling["scheduler"], scheduler_config)
        scheduler.set_timesteps(sampling["steps"])
        model = FamilyModel.load(source, mesh)
        model.of(replace(model.family, side=config["patch_size"]))
        result = Denoiser(model).sample(inputs["latents"], scheduler, *branches, sampling["guidance"])
        if result is not None:
            results[name] = result
    return None, results
