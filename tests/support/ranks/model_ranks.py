"""`model_ranks CASES OUT`:
runs cases on the engine as a plain script would, and saves what rank 0 gets."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.loading import ModelSource
from tests.support.cases.families import FAMILIES
from tests.support.family_model import FamilyModel


def on_ranks(cases: list[dict], out_path: str) -> None:
    """Cases are JSON objects of name, family, folder, plan, shape (batch first) and dtype; a model is loaded once for
    those that follow each other with it."""
    device = torch.device("cpu")
    meshes, results, loaded = {}, {}, {}
    for case in cases:
        family = FAMILIES[case["family"]]
        files = (str(Path(case["folder"]) / "diffusion_pytorch_model.safetensors"),)
        source = ModelSource(family.model_class, family.config, files, case["dtype"])
        plan = ParallelPlan.from_json(case["plan"])
        if plan not in meshes:
            meshes[plan] = build_mesh(plan, device)
        key = (case["family"], case["dtype"], plan)
        if key not in loaded:
            loaded = {key: FamilyModel.load(source, meshes[plan]).of(family)}
        prediction = loaded[key](*family.inputs(*case["shape"]))
        if (dist.get_rank() == 0) != (prediction is not None):
            raise SystemExit("Exactly rank 0 shall hold the result.")
        if prediction is not None:
            results[case["name"]] = prediction.contiguous()
    if dist.get_rank() == 0:
        save_file(results, out_path)
