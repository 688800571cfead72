"""What a rank imports, and what that costs in CPU time and memory, by what it is to run.

COMFYUI_PATH=… python -m tests.benchmarks.start

Each line is a process of its own, beyond torch: the ratios are to what a rank takes that runs diffusers' classes. CPU
time is the least of five.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed  # of which what it costs is not counted

from demo.host import REPOSITORY

RUNS = 5
WATCHED = ("diffusers", "transformers", "torchvision", "torchaudio", "av", "kornia", "spandrel", "comfy.sd", "comfy")


def import_rank() -> None:
    import worker.rank.serving  # noqa: F401


def import_host_classes() -> None:
    from worker.comfyui.model import import_comfyui
    from worker.comfyui.source import HostSource

    import_rank()
    import_comfyui(HostSource(os.environ["COMFYUI_PATH"], ("--cpu",), "", "", "", ""))


def import_diffusers_classes() -> None:
    import diffusers

    import_rank()
    for name in ("FluxTransformer2DModel", "WanTransformer3DModel"):
        getattr(diffusers, name)


def run_host_file(file: str) -> None:
    """A file by ComfyUI's own class, loaded by one rank's code."""
    from parallel_backend.groups.mesh import Axis, Mesh
    from parallel_backend.groups.timeline import Timeline
    from parallel_backend.plan import ParallelPlan

    import_rank()
    from worker.comfyui.source import HostSource
    from worker.rank.model.host_model import HostModel

    plan, cpu = ParallelPlan(), torch.device("cpu")
    axes = dict.fromkeys((*plan.degrees(), "batch", "sequence"), Axis(None, 1, 0))
    source = HostSource(os.environ["COMFYUI_PATH"], ("--cpu",), file, "", "float32", "")
    HostModel.load(source, Mesh(plan, cpu, axes, Timeline(cpu)))


PARTS: Mapping[str, Callable[..., None]] = {
    "a rank that waits": import_rank,
    "a rank with ComfyUI's classes": import_host_classes,
    "a rank with a file by ComfyUI's class": run_host_file,
    "a rank with diffusers' classes": import_diffusers_classes,
}


def in_process(part: str, *arguments: str) -> dict[str, Any]:
    """What a part costs in a process of its own: CPU seconds, MB, and which of WATCHED it imported."""
    command = [sys.executable, "-m", "tests.benchmarks.start", "--part", part, *arguments]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("file", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        sys.argv = sys.argv[:1]
        seconds, before = time.process_time(), resident()
        PARTS[options.part](*options.file)
        found = {"seconds": time.process_time() - seconds, "megabytes": resident() - before}
        print(json.dumps({**found, "imported": [name for name in WATCHED if name in sys.modules]}))
        return
    costs = {part: [in_process(part) for _ in range(RUNS)] for part in PARTS if PARTS[part] is not run_host_file}
    base = costs["a rank with diffusers' classes"]
    for part, runs in costs.items():
        time_ratio = min(run["seconds"] for run in runs) / min(run["seconds"] for run in base)
        memory_ratio = min(run["megabytes"] for run in runs) / min(run["megabytes"] for run in base)
        print(f"{part}: {time_ratio:.2f} of the CPU time, {memory_ratio:.2f} of the memory; {runs[0]['imported']}")


if __name__ == "__main__":
    main()
