"""What a large model costs to its first image, and in memory: as stock, and by Parallelize Model behind a loader that
names its file, and behind one that does not.

COMFYUI_PATH=… python -m tests.benchmarks.host.cold_prompt

Each prompt is the first of a ComfyUI of its own, on two CPU ranks, with the file in the system's cache. They take
turns.
Memory is PSS, which counts a page that several processes map once for all, at the end of the prompt, in GB (1e9):
the memory that the processes own or share, and beside it the pages of files, which the system takes back when it
needs them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from demo.host import ComfyHost
from tests.conftest import HOST_ENV
from tests.support.files.deeper import deepen
from tests.support.host.graphs import Graph, Link, parallelize, worker_processes, write_packs
from tests.support.host.stock_prompts import prompt, write_cases

MODEL = "flux-full-width"
BLOCKS = 4  # of one stream: with the rest of the model, a file of 3.9 GB
PLAN, RUNS = {"ulysses": 2}, 3
Loads = Callable[[Graph, Link], Link]


class Found(NamedTuple):
    seconds: float
    of_comfyui: float
    of_all: float
    pages_of_files: float


def by_value(graph: Graph, _model: Link) -> Link:
    return parallelize(graph, graph.add("Test_LoadStateDict", model_name=f"{MODEL}.safetensors"), PLAN)


def measure(comfyui: Path, base: Path, options: list[str], loads: Loads | None) -> Found:
    with ComfyHost(comfyui, base, extra_args=options, env=HOST_ENV) as host:
        began = time.monotonic()
        host.run(prompt(MODEL, patch=loads, steps=1))
        seconds = time.monotonic() - began
        processes = [psutil.Process(host.process.pid), *worker_processes(host)]
        owned, mapped = zip(*(memory_of(each.pid) for each in processes), strict=True)
        return Found(seconds, owned[0], sum(owned), sum(mapped))


def memory_of(pid: int) -> tuple[float, float]:
    """Returns a process's PSS in GB, of its own and shared memory, and of files."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
    return (kilobytes["Pss_Anon"] + kilobytes["Pss_Shmem"]) * 1024 / 1e9, kilobytes["Pss_File"] * 1024 / 1e9


def main() -> None:
    comfyui, found = Path(os.environ["COMFYUI_PATH"]), {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write_cases(comfyui, base, [MODEL])
        deepen(base / "models" / "diffusion_models" / f"{MODEL}.safetensors", BLOCKS)
        flags, cases = write_packs(base), {}
        for mapped, more in {"": [], ", --disable-mmap": ["--disable-mmap"]}.items():
            for name, loads in {"stock": None, "file": partial(parallelize, plan=PLAN), "value": by_value}.items():
                cases[f"{name}{mapped}"] = (more, loads)
        for _ in range(RUNS):
            for name, (more, loads) in cases.items():
                found.setdefault(name, []).append(measure(comfyui, base, [*flags, *more], loads))
                print(name, found[name][-1], flush=True)
    for name, each in found.items():
        medians = (statistics.median(values) for values in zip(*each, strict=True))
        words = "{:40} {:6.1f} s, ComfyUI {:5.2f} GB, with the ranks {:5.2f} GB, pages of files {:5.2f} GB"
        print(words.format(name, *medians))


if __name__ == "__main__":
    main()
