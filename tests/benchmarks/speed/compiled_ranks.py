"""`torchrun -m tests.benchmarks.speed.compiled_ranks ROUNDS OUT`: see `compiled.py`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.compiled import BY_PLAN
from tests.support.cases.families import FAMILIES
from tests.support.family_model import FamilyModel
from tests.support.ranks.leaving import leave

# Flux's blocks at a quarter of its width; 2 and 4 of 19 and 38.
SIZES = {
    "num_attention_heads": 6,
    "attention_head_dim": 128,
    "num_layers": 2,
    "num_single_layers": 4,
    "axes_dims_rope": (16, 56, 56),
}
SIDE, OTHER_SIDE = 40, 48  # of the latents, whose patches are of 2×2: 400 and 576 tokens


def seconds(run: Callable[[], Any]) -> float:
    dist.barrier()
    began = time.perf_counter()
    run()
    dist.barrier()
    return time.perf_counter() - began


def main(rounds: str, out: str) -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    family = FAMILIES["flux-dev"]
    family = replace(family, config={**family.config, **SIZES})
    model = FamilyModel(family.build(), build_mesh(ParallelPlan(ulysses=dist.get_world_size()), torch.device("cpu")))
    inputs, others = family.inputs(1, SIDE, SIDE), family.inputs(1, OTHER_SIDE, OTHER_SIDE)
    found: dict[str, Any] = {"eager": [], "compiled": []}
    right = model(*inputs)

    def compiled(given: tuple) -> Any:
        model.compiled.asked = BY_PLAN
        got = model(*given)
        model.compiled.asked = None
        return got

    found["first"], found["other"] = seconds(lambda: compiled(inputs)), seconds(lambda: compiled(others))
    got = compiled(inputs)
    found["error"] = float((got - right).norm() / right.norm()) if got is not None else 0.0
    for _ in range(int(rounds)):
        found["eager"].append(seconds(lambda: model(*inputs)))
        found["compiled"].append(seconds(lambda: compiled(inputs)))
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
