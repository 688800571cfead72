"""`torchrun -m tests.support.ranks.networks.controlnet_ranks PLANS OUT`:
runs ComfyUI's ControlNets under plans, and saves as JSON, by row and plan, the largest relative error on any rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.forward import Forward
from tests.support.cases.host.controlnets import CONTROLNETS
from tests.support.cases.references import relative_error
from tests.support.ranks import host_ranks  # noqa: F401 (imports ComfyUI)
from tests.support.ranks.leaving import leave

Outputs = dict[str, Any]


def errors(found: Outputs, alone: Outputs) -> list[float]:
    """Of each tensor; infinite where one is missing or has another shape."""
    pairs = [(ours, theirs) for name in alone for ours, theirs in zip(found[name], alone[name], strict=True)]
    assert pairs and found.keys() == alone.keys()
    return [relative_error(ours, theirs) if ours.shape == theirs.shape else float("inf") for ours, theirs in pairs]


def main(plans: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    worst: dict[str, float] = {}
    degrees = [each for each in json.loads(plans) if ParallelPlan.from_json(each).world_size == dist.get_world_size()]
    meshes = [build_mesh(ParallelPlan.from_json(each), torch.device("cpu")) for each in degrees]
    for name, case in CONTROLNETS.items():
        model, (args, kwargs) = case.build(), case.inputs()
        with torch.inference_mode():
            alone = model(*args, **{**kwargs})
        for plan, mesh in zip(degrees, meshes, strict=True):
            parallel = ParallelModel(model, mesh, torch.float32)
            with torch.inference_mode():
                found = parallel.run(*case.inputs(), Forward(parallel.slot.every_segment()))
            parallel.remove()
            largest = torch.tensor(max(errors(found, alone)))
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            worst[f"{name} | {json.dumps(plan)}"] = float(largest)
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(worst))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
