"""A sanitizer is for the ranks alone: the agent above them, which imports torch and forks, runs without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.host import REPOSITORY
from tests.support.streams.sanitizers import STREAMS, read_findings, start_ranks_under
from worker.launch.lifetime import PARENT
from worker.launch.torchrun import DEVICE

# Stands in for a rank: writes its variables, and those of the process that has started it.
RANK = """#!/bin/sh
tr '\\0' '\\n' < /proc/$$/environ > {folder}/rank-$RANK
tr '\\0' '\\n' < /proc/$PPID/environ > {folder}/agent-$RANK
"""
# Stands in for NVIDIA's: finds one error in each process.
COMPUTE_SANITIZER = """#!/bin/sh
[ "$1" = --tool=memcheck ] || exit 1
file=$(echo "${2#--log-file=}" | sed "s/%p/$$/"); shift 2
printf '========= %s\\n' COMPUTE-SANITIZER 'Invalid __global__ read of size 4 bytes' '    at kernel' > "$file"
SANITIZED=1 exec "$@"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("tool", "variable", "found"),
    [
        (STREAMS, "TORCH_CUDA_SANITIZER=1", []),
        ("memcheck", "SANITIZED=1", ["========= Invalid __global__ read of size 4 bytes"] * 2),
    ],
)
def test_ranks_alone_run_under_a_sanitizer(
    tool: str, variable: str, found: list[str], tmp_path: Path, own_ranks: None
) -> None:
    for name, script in {"rank": RANK.format(folder=tmp_path), "compute-sanitizer": COMPUTE_SANITIZER}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o700)
    environment = {PARENT: str(os.getpid()), DEVICE: "cuda", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(
        [sys.executable, "-m", "worker.launch.agent", f"--folder={tmp_path}", "--ranks=2"],
        cwd=REPOSITORY,
        env=os.environ | environment | start_ranks_under(tool, tmp_path, str(tmp_path / "rank")),
        check=True,
        timeout=60,
    )
    for rank in range(2):
        assert variable in (tmp_path / f"rank-{rank}").read_text().splitlines()
        assert variable not in (tmp_path / f"agent-{rank}").read_text().splitlines()
    assert read_findings(tmp_path) == found
