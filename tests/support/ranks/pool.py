"""Runs a program of this folder on ranks, as torchrun does, without a rank's start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from safetensors.torch import load_file

from demo.host import REPOSITORY

Case = TypeVar("Case")

PROGRAMS = "tests.support.ranks"
JOB_SECONDS = 600
CASE_SECONDS = 20  # of a job with many cases, even beside other work
JOB_CASES = 100  # of a long list
END_SECONDS = 60
LOG_CHARACTERS = 4000
# Memory of freed tensors is kept for the next ones: the system would clear each page anew, which takes a
# tenth of the time.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)
}  # fmt: skip


class RankPool(AbstractContextManager["RankPool"]):
    """Started by its first job. Each job has fresh ranks, so that one that fails spoils none after it.

    environment: of the ranks, beside this process's own.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = environment
        self.jobs = 0
        self.process: subprocess.Popen | None = None

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(END_SECONDS)

    def run(self, ranks: int, program: str, *arguments: Any, cases: int = 0) -> list[Any]:
        """Runs a program on all ranks, and returns what each rank's `on_ranks` does. Raises AssertionError with what
        they said if one of them fails. arguments: as in JSON, like results, beside which there may be tensors by name.
        cases: how many there are, if many."""
        if self.process is None:
            command = [sys.executable, "-m", f"{PROGRAMS}.forks"]
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, env={**os.environ, **ENVIRONMENT, **self.environment}, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
        self.jobs += 1
        folder = self.folder / f"{self.jobs}-{program}-{ranks}"
        folder.mkdir()
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        job = {
            "program": f"{PROGRAMS}.{program}",
            "ranks": ranks,
            "arguments": arguments,
            "folder": str(folder),
            "environment": meeting_place(store),
            "seconds": max(JOB_SECONDS, CASE_SECONDS * cases),
        }
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "what forks the ranks has ended; its error is in pytest's own output"
        codes = json.loads(answer)
        assert not any(code != 0 for code in codes), f"{program} on {ranks} ranks ended with {codes}\n{said(folder)}"
        return [result_in(folder / f"result-{rank}.json") for rank in range(ranks)]


def result_in(file: Path) -> Any:
    found = json.loads(file.read_text()) if file.exists() else None
    tensors = file.with_suffix(".safetensors")
    return (found, load_file(tensors)) if tensors.exists() else found


def split_into_jobs(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    return (cases[start : start + JOB_CASES] for start in range(0, len(cases), JOB_CASES))


def meeting_place(store: dist.TCPStore) -> dict[str, str]:
    """What ranks read from their environment to meet at a store of their starter's, as torchrun's do."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def said(folder: Path) -> str:
    """The last of what each rank has printed."""
    logs = sorted(folder.glob("rank-*.log"))
    return "\n".join(f"--- {log.stem}\n{log.read_text(errors='replace')[-LOG_CHARACTERS:]}" for log in logs)
