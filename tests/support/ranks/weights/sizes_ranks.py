"""`weights.sizes_ranks SOURCES`:
loads models under plans that share out their weights, and returns how many bytes of them this rank has."""

from __future__ import annotations

import torch

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.loading import ModelSource

STAGES = {"pipefusion": 2, "patches": 1}
PLANS = ({**STAGES, "ulysses": 2}, {"ulysses": 4})


def on_ranks(sources: dict[str, dict]) -> list[list]:
    found = []
    for name, source in sources.items():
        for plan in PLANS:
            mesh = build_mesh(ParallelPlan(**plan), torch.device("cpu"))
            model = DiffusersModel.load(ModelSource(**source), mesh)
            found.append([name, plan, model.weight_bytes])
            mesh.close()
    return found
