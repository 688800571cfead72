"""`torchrun -m tests.support.ranks.weights.fetched_host_ranks CASES OUT`:
runs ComfyUI's own classes with weights that are fetched, and with the same weights whole, and saves where they are
equal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from tests.support.cases.host import CASES, HostCase
from tests.support.ranks.host_ranks import Sampling, flat, steps_of
from tests.support.ranks.leaving import leave
from tests.support.ranks.weights.fetching import Meshes, equal_by_way, poison_buffers, ways_from


def outputs(model: ParallelModel, case: HostCase, count: int) -> list[torch.Tensor | None]:
    """Of so many calls at once, in all steps; with stages of a sampling."""
    if model.mesh.plan.pipefusion > 1:
        return [Sampling(case, case.build()).parallel(model)]
    model.forget()
    got = [flat(each) for calls in steps_of(case, count) for each in model.run_calls(calls) or ()]
    return [torch.cat(got) if got else None]


def main(cases: str, out: str) -> None:
    """Cases are a name in CASES, with the number of calls behind it if they are several, a plan, and the kind of
    weights that come first."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    poison_buffers()
    meshes, found = Meshes(), []
    for name, degrees, first in json.loads(Path(cases).read_text()):
        row, _, count = name.partition(" × ")
        case, calls, plan = CASES[row], int(count or 1), ParallelPlan.from_json(degrees)
        mesh = meshes.of(plan)
        model = ParallelModel(case.build(), mesh, torch.float32)
        right = outputs(model, case, calls)
        equal = equal_by_way(
            model.fetched,
            ways_from(first, plan, row),
            lambda kind, mesh=mesh, model=model: meshes.store(kind, mesh, model.fetched),
            model.fetched.rearrange,
            lambda model=model, case=case, calls=calls: outputs(model, case, calls),
            right,
        )
        found.append([name, degrees, first, equal])
    Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
