"""`pipefusion_ranks CASES OUT`:
samples cases on the engine; each result is saved by its rank."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.loading import ModelSource
from tests.support.cases.pipefusion_cases import case_inputs, family_of, scheduler_of
from tests.support.family_model import Denoiser, FamilyModel


def on_ranks(cases_path: str, out_path: str) -> None:
    """Cases are JSON objects: see tests/support/cases/pipefusion_cases.py."""
    device = torch.device("cpu")
    results, loaded = {}, {}
    meshes = {}
    for case in json.loads(Path(cases_path).read_text()):
        plan = ParallelPlan.from_json(case["plan"])
        key = (case["family"], plan)
        if key not in loaded:
            family = family_of(case["family"])
            files = (str(Path(case["folder"]) / "diffusion_pytorch_model.safetensors"),)
            if plan not in meshes:
                meshes[plan] = build_mesh(plan, device, link_groups=case.get("link_groups"))
            source = ModelSource(family.model_class, family.config, files)
            loaded = {key: FamilyModel.load(source, meshes[plan]).of(family)}
        latents, conditions, negative = case_inputs(case["family"], case["short_negative"])
        result = Denoiser(loaded[key]).sample(latents, scheduler_of(case["scheduler"]), conditions, negative, 3.0)
        if result is not None:
            results[case["name"]] = result.contiguous()
    save_file(results, f"{out_path}.{dist.get_rank()}")
