"""What the pack costs ComfyUI where none of its nodes runs: the start, its process's memory, and a stock prompt.

COMFYUI_PATH=… python -m tests.benchmarks.host.unused

A ComfyUI without the pack, and with it, in turns. CPU seconds and memory are of ComfyUI's own process, until it answers
and after prompts of the stock loader and sampler. Memory is what is no file's. Medians of the runs.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

import psutil

from demo.host import REPOSITORY, ComfyHost
from tests.support.host.graphs import find_node, write_packs
from tests.support.host.stock_prompts import prompt, write_cases

MODEL, PROMPTS, RUNS = "longcat-image", 3, 5
COLUMNS = ("CPU seconds to start", "MB", "CPU seconds a prompt", "MB after prompts")


def anonymous(pid: int) -> float:
    """The MB of a process that are no file's."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024 / 1e6


def measure(base: Path, arguments: tuple[str, ...], pack: Path) -> tuple[float, ...]:
    """The values of COLUMNS."""
    with ComfyHost(Path(os.environ["COMFYUI_PATH"]), base, extra_args=arguments, pack=pack) as host:
        assert host.process is not None
        process = psutil.Process(host.process.pid)
        started, memory = sum(process.cpu_times()[:2]), anonymous(process.pid)
        for seed in range(PROMPTS):
            asked = prompt(MODEL)
            find_node(asked, "KSampler")["inputs"]["seed"] = seed
            host.run(asked)
        ran = (sum(process.cpu_times()[:2]) - started) / PROMPTS
        return started, memory, ran, anonymous(process.pid)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base, empty = Path(folder) / "base", Path(folder) / "no pack"
        empty.mkdir()
        arguments = write_packs(base)
        (empty / "__init__.py").write_text("NODE_CLASS_MAPPINGS = {}\n")
        write_cases(Path(os.environ["COMFYUI_PATH"]), base, [MODEL])
        packs = {"without the pack": empty, "with it": REPOSITORY}
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in packs}
        for _ in range(RUNS):
            for name, pack in packs.items():
                found[name].append(measure(base, arguments, pack))
    print("| |", " | ".join(COLUMNS), "|")
    for name, runs in found.items():
        print(f"| {name} |", " | ".join(f"{statistics.median(each):.2f}" for each in zip(*runs, strict=True)), "|")


if __name__ == "__main__":
    main()
