"""`torchrun -m tests.support.ranks.demo_ranks FOLDER CASES OUT`:
samples the demo model on the engine; the last stage saves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.schedulers import build_scheduler
from parallel_backend.weights.loading import ModelSource
from tests.support.family_model import Denoiser, FamilyModel
from tests.support.ranks.leaving import leave


def main(folder: str, cases_path: str, out_path: str) -> None:
    """Cases: a JSON object of inputs (a safetensors file of latents, asked and unasked labels), steps, guidance,
    scheduler, and plans by name."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = json.loads(Path(cases_path).read_text())
    weights = str(Path(folder) / "transformer" / "diffusion_pytorch_model.safetensors")
    config = json.loads((Path(folder) / "transformer" / "config.json").read_text())
    source = ModelSource("DiTTransformer2DModel", config, (weights,))
    scheduler_config = json.loads((Path(folder) / "scheduler" / "scheduler_config.json").read_text())
    inputs = load_file(cases["inputs"])
    branches = [{"class_labels": inputs[name]} for name in ("asked", "unasked")]
    results = {}
    for name, plan in cases["plans"].items():
        mesh = build_mesh(ParallelPlan.from_json(plan), torch.device("cpu"))
        transformer = FamilyModel.load(source, mesh)
        scheduler = build_scheduler(cases["scheduler"], scheduler_config)
        scheduler.set_timesteps(cases["steps"])
        result = Denoiser(transformer).sample(inputs["latents"], scheduler, *branches, cases["guidance"])
        if result is not None:
            results[name] = result.contiguous()
    if results:
        save_file(results, out_path)
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
