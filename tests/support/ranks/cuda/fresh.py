"""Runs a program of the ranks on processes of their own, as a GPU asks for: CUDA survives no fork."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

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
            own: dict[str, object] = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            own |= meeting_place(store) | cuda_environment(os.environ)
            environment = os.environ | ENVIRONMENT | {name: str(value) for name, value in own.items()}
            with (folder / f"rank-{rank}.log").open("wb") as log:
                command = [sys.executable, "-m", f"{PROGRAMS}.{program}", *arguments]
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
