"""`torchrun -m tests.support.ranks.failing_ranks PLAN HOW OUT`:
samples without end on a tiny model, and the last rank fails in it.

HOW: "raise" or "kill" (SIGKILL to itself), inside the attempt to communicate, while the others wait for it there.
Each rank leaves a file OUT/RANK.json: the failing one when it failed, the others what they saw of it and when.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import diffusers
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from parallel_backend.groups.collectives import ALL_GATHER
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from tests.support.cases.families import FAMILIES
from tests.support.family_model import Denoiser, FamilyModel

FAMILY, STEPS = "dit", 100_000
COMMUNICATES = ("all_to_all_single", ALL_GATHER, "batch_isend_irecv", "isend", "send")
CALL = 40  # well inside: the first calls set connections up
HEAD_START = 0.5
CPU = torch.device("cpu")


class Sabotage(RuntimeError):
    """What the failing rank raises."""


def sabotage(how: str, report: Path) -> None:
    """Makes this rank's CALL-th attempt to communicate its last."""
    calls = 0

    def wrap(function):
        def failing(*args, **options):
            nonlocal calls
            calls += 1
            if calls < CALL:
                return function(*args, **options)
            time.sleep(HEAD_START)  # so that the others are waiting by now
            report.write_text(json.dumps({"pid": os.getpid(), "at": time.time()}))
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise Sabotage("this rank fails, as the test asked")

        return failing

    for name in COMMUNICATES:
        function = wrap(getattr(dist, name))
        for module in (dist, distributed_c10d):  # P2POp insists that both have the same
            setattr(module, name, function)


def main(plan: str, how: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, family = dist.get_rank(), FAMILIES[FAMILY]
    report = Path(out, f"{rank}.json")
    transformer = FamilyModel(family.build(), build_mesh(ParallelPlan.from_json(json.loads(plan)), CPU))
    latents, _, conditions = family.inputs(1, 16, 16)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=STEPS)
    scheduler.set_timesteps(STEPS)
    fails = rank == dist.get_world_size() - 1
    if fails:
        sabotage(how, report)
    try:
        Denoiser(transformer).sample(latents, scheduler, conditions, conditions, 3.0)
    except Exception as error:
        if not fails:
            report.write_text(json.dumps({"pid": os.getpid(), "at": time.time(), "error": str(error)}))
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
