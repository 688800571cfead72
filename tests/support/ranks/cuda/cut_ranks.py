"""`torchrun -m tests.support.ranks.cuda.cut_ranks OUT DEVICE`:
cuts a job whose ranks wait for a message on each of two groups that nobody sends, and saves after how many seconds the
device was free again. Groups that are built afterwards carry data.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from parallel_backend.device import synchronise
from parallel_backend.groups.mesh import start_distributed
from parallel_backend.groups.timeline import SILENT
from parallel_backend.plan import ParallelPlan
from tests.support.ranks.leaving import leave
from worker.rank.job_groups import JobGroups

JOB, PLAN = 1, ParallelPlan(pipefusion=2)
ONE = 1.0
PENDING_SECONDS = 1.0  # so that both receives run when they are cut


def wait_for_nothing(groups: JobGroups, device: torch.device) -> float:
    """The seconds from the cut to the end of two receives."""
    # Whose handshakes have connected this way: to receive over a new connection, the host would wait for the sender.
    several = groups.of_plan(PLAN).link_in, groups.whole().group
    works = [dist.irecv(torch.empty(1, device=device), 1 - dist.get_rank(), group=group) for group in several]
    time.sleep(PENDING_SECONDS)
    began = time.monotonic()
    threading.Thread(target=groups.cut, args=(JOB,)).start()
    for work in works:
        try:
            work.wait()
        except RuntimeError as error:  # gloo's raise; NCCL's only end
            print(f"ended: {error}")
    synchronise(device)
    return time.monotonic() - began


def main(out: str, device_type: str) -> None:
    torch.set_num_threads(1)
    device = start_distributed(device_type)
    groups = JobGroups(device, SILENT)
    groups.job = JOB
    seconds = wait_for_nothing(groups, device)
    groups.close()
    total = torch.full((1,), ONE, device=device)
    dist.all_reduce(total, group=groups.whole().group)
    assert float(total) == ONE * dist.get_world_size()
    Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(seconds))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
