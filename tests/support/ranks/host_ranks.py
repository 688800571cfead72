"""`torchrun -m tests.support.ranks.host_ranks CASES OUT`:
runs ComfyUI's own classes under plans, and saves what rank 0 gets, and what the plain class gives.

ComfyUI, which COMFYUI_PATH names, is imported with this, and so once for all ranks that are forked off one process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.module import ParallelModule
from parallel_backend.plan import ParallelPlan
from tests.support.cases.host import CASES
from tests.support.cases.host.base import HostCase
from tests.support.ranks.leaving import leave

sys.path.append(os.environ["COMFYUI_PATH"])
with patch.object(sys, "argv", [sys.argv[0], "--cpu", "--use-pytorch-cross-attention"]):
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.ldm.modules.attention
    import comfy.model_base  # noqa: F401 (every class that there is)


def flat(output: Any) -> torch.Tensor:
    """What a model returns, as one row."""
    parts = [output] if isinstance(output, torch.Tensor) else output
    return torch.cat([part.flatten().float() for part in parts])


def calls_of(case: HostCase, count: int) -> list[Call]:
    """The case's call, and others of which each is narrower, with less text, than the one before."""
    args, kwargs = case.inputs()
    kwargs.setdefault("transformer_options", {})
    made = [Call(args, kwargs)]
    for less in range(1, count):
        narrower = args[0][..., : -2 * less].contiguous()
        made.append(Call((narrower, *args[1:]), kwargs | {"context": kwargs["context"][:, less:]}))
    return made


def main(cases_path: str, out_path: str) -> None:
    """Cases are pairs of a plan and a name in CASES, with the number of calls behind it if they are several; the result
    of the plan {} is the plain class's."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    meshes, results = {}, {}
    for name, degrees in json.loads(Path(cases_path).read_text()):
        row, _, count = name.partition(" × ")
        case, plan = CASES[row], ParallelPlan.from_json(degrees)
        calls, model = calls_of(case, int(count or 1)), case.build()
        if degrees:
            if plan not in meshes:
                meshes[plan] = build_mesh(plan, torch.device("cpu"))
            outputs = ParallelModule(model, meshes[plan], torch.float32)(calls)
            if (dist.get_rank() == 0) != (outputs is not None):
                raise SystemExit("Exactly rank 0 shall hold the result.")
        else:
            with torch.inference_mode():
                outputs = [model(*args, **kwargs) for args, kwargs in calls]
        if outputs:
            results[f"{name} | {json.dumps(degrees)}"] = torch.cat([flat(output) for output in outputs])
    if dist.get_rank() == 0:
        save_file(results, out_path)
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
