"""`torchrun -m tests.support.ranks.weights.sizes_ranks SOURCES OUT`:
loads models under plans that share out their weights, and saves how many bytes of them this rank has."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.loading import ModelSource
from tests.support.ranks.leaving import leave

STAGES = {"pipefusion": 2, "patches": 1}
PLANS = ({**STAGES, "ulysses": 2}, {"ulysses": 4})


def main(sources: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = []
    for name, source in json.loads(Path(sources).read_text()).items():
        for plan in PLANS:
            mesh = build_mesh(ParallelPlan(**plan), torch.device("cpu"))
            model = DiffusersModel.load(ModelSource(**source), mesh)
            found.append([name, plan, model.weight_bytes])
            mesh.close()
    Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
