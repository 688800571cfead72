"""Runs a program of the ranks on processes of their own, as a GPU asks for: CUDA survives no fork.

If there are fewer GPUs than ranks, ranks share a GPU. NCCL refuses two ranks on a GPU of one machine, so each round of
the GPUs claims to be a machine of its own. Such ranks exchange through sockets: this shows whether they compute the
right numbers, and not how fast.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from demo.host import REPOSITORY
from tests.support.ranks.pool import ENVIRONMENT, PROGRAMS, meeting_place, said
from worker.launch.torchrun import cuda_environment

POLL_SECONDS, GRACE_SECONDS = 0.1, 5.0


def run_ranks(
    folder: Path, ranks: int, program: str, arguments: Sequence[str], alive: Callable[[], bool]
) -> tuple[list[int | None], str]:
    """Their exit codes, None of one that was ended, and the last of what they said. Where one fails, or `alive`, which
    is asked now and then, says that nothing comes any more, the others are ended.

    folder: for their logs.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes: list[subprocess.Popen] = []
    codes: list[int | None] = [None] * ranks
    try:
        for rank in range(ranks):
            own = place_of(rank, ranks) | meeting_place(store) | cuda_environment(os.environ)
            with (folder / f"rank-{rank}.log").open("wb") as log:
                command = [sys.executable, "-m", f"{PROGRAMS}.{program}", *arguments]
                environment = os.environ | ENVIRONMENT | own
                processes.append(
                    subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=subprocess.STDOUT)
                )
        until = float("inf")
        while None in codes and time.monotonic() < until and alive():
            time.sleep(POLL_SECONDS)
            codes = [process.poll() for process in processes]
            if any(codes):
                until = min(until, time.monotonic() + GRACE_SECONDS)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
    return codes, said(folder)


def place_of(rank: int, ranks: int) -> dict[str, str]:
    """The variables that tell a rank its place, as torchrun's do."""
    here = min(ranks, torch.cuda.device_count() or ranks)
    found = {"RANK": rank, "LOCAL_RANK": rank % here, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": here}
    if here < ranks:
        found |= {"NCCL_HOSTID": f"machine-{rank // here}", "NCCL_SOCKET_IFNAME": "lo"}
    return {name: str(value) for name, value in found.items()}
