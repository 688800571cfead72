"""Starts ranks under a sanitizer, and nothing above them: torchrun starts each rank by the command in PYTHON_EXEC.

torch's own sanitizer ends the request that uses a tensor on two streams without waiting. NVIDIA's compute-sanitizer
writes what it finds into a file for each process.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

STREAMS = "streams"  # torch's; every other name is a tool of compute-sanitizer, such as memcheck or initcheck
# A rank may be silent for so long under a sanitizer. With numpy's threads, the agent forks no ranks on the CPU either.
OF_COMFYUI = {"PARALLELDIT_SILENCE_SECONDS": "300", "OPENBLAS_NUM_THREADS": "2"}
# A finding begins in the first column behind the bars. The first line and the last are none.
FINDING = re.compile(r"^========= (?!COMPUTE-SANITIZER|ERROR SUMMARY: 0 )[A-Z].*", re.MULTILINE)


def start_ranks_under(tool: str, folder: Path, python: str = sys.executable) -> dict[str, str]:
    """Returns the variables that make ComfyUI start its ranks under a tool; none without a tool."""
    if not tool:
        return {}
    files = shlex.quote(f"{folder}/sanitizer-%p.txt")
    command = "env TORCH_CUDA_SANITIZER=1" if tool == STREAMS else f"compute-sanitizer --tool={tool} --log-file={files}"
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec {command} {shlex.quote(python)} "$@"\n')
    script.chmod(0o700)
    return {"PYTHON_EXEC": str(script), **OF_COMFYUI}


def read_findings(folder: Path) -> list[str]:
    """Returns what compute-sanitizer has found in all ranks, a line each."""
    return [line for file in folder.glob("sanitizer-*.txt") for line in FINDING.findall(file.read_text())]
