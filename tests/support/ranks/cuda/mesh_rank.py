"""`torchrun -m tests.support.ranks.cuda.mesh_rank PLAN OUT [DEVICE]`:
builds the mesh of a plan and gives it up, three times over, and saves the names of this rank's groups, in the order in
which it gives them up.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import build_mesh, start_distributed
from parallel_backend.plan import ParallelPlan
from tests.support.ranks.leaving import leave

TIMES = 3


def main(plan: str, out: str, device_type: str = "cpu") -> None:
    torch.set_num_threads(1)
    device = start_distributed(device_type)
    found = []
    for _ in range(TIMES):
        mesh = build_mesh(ParallelPlan(**json.loads(plan)), device)
        found.append([group.group_name for group in mesh.groups()])
        for axis in mesh.axes.values():
            if axis.group:
                total = torch.tensor([dist.get_rank()], device=device)
                dist.all_reduce(total, group=axis.group)
                assert int(total) == sum(dist.get_process_group_ranks(axis.group))
        mesh.close()
    Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
