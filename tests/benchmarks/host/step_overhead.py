"""What a step of one rank costs beyond stock, on the way from ComfyUI's node to rank 0 and back.

python -m tests.benchmarks.host.step_overhead COMFYUI

Milliseconds are of the CPU, medians of steps that stock and the rank make in turns, on tiny models with large patches,
without the model's own.
All else is counted on labelled tensors (docs/dev/06-gpu-path.md): kernels, memory, copies and waits as a GPU would see
them, and frames. Both processes work in one thread, so the time of a wake-up is not in it; `hop` has that.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.support.ranks.pool import RankPool

WARM, STEPS = 10, 40  # steps before, of which the first corrects predictions; and those that are timed
COUNTED = ("kernels", "allocations", "waits", "copies", "from_gpu", "to_gpu", "messages")
CPU = torch.device("cpu")


class Timer:
    """Adds up the CPU seconds while it is entered."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self.began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.thread_time() - self.began


def measure(way: Any, size: Any) -> list[float]:
    """Milliseconds of a step of stock, and what ComfyUI's process and the rank take beyond the model's own."""
    from tests.support.labelled.one_rank import OneRank

    rank, own, rows = Timer(), Timer(), []
    one = OneRank(way, size, CPU, lambda: rank)
    forward = one.model.forward

    def timed(*args: Any, **kwargs: Any) -> Any:
        with own:
            return forward(*args, **kwargs)

    vars(one.model)["forward"] = timed
    with one.sampling():
        for step in range(WARM + STEPS):
            began = time.thread_time()
            one.of_stock(one.given(step))
            stock, given = time.thread_time() - began, one.given(step)
            rank.seconds, own.seconds, began = 0.0, 0.0, time.thread_time()
            one.of_ranks(given)
            rows.append((stock, time.thread_time() - began - rank.seconds, rank.seconds - own.seconds))
    return [1e3 * statistics.median(column) for column in zip(*rows[WARM:], strict=True)]


def count(folder: Path) -> dict[str, Any]:
    with RankPool(folder) as pool:
        return pool.run(1, "cuda.step_ranks", str(folder))[0]


def print_counts(name: str, counted: dict[str, Any]) -> None:
    for process, less in (("comfyui", {}), ("rank", counted["stock"])):
        added = {what: counted[process].get(what, 0) - less.get(what, 0) for what in COUNTED}
        print(f"{name}, {process}: " + ", ".join(f"{what} {number:,}" for what, number in added.items()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.host.step_overhead")
    parser.add_argument("comfyui")
    options = parser.parse_args()
    os.environ |= {"COMFYUI_PATH": options.comfyui, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    torch.set_num_threads(1)
    from tests.support.labelled.one_rank import SIZES
    from tests.support.labelled.whole_way import WholeWay
    from worker.launch.torchrun import THREADS

    os.environ[THREADS] = "1"
    with tempfile.TemporaryDirectory() as name:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        way = WholeWay(Path(name), CPU)
        for size in SIZES:
            stock, comfyui, rank = measure(way, SIZES[size])
            print(f"{size}: stock {stock:.1f} ms, ComfyUI +{comfyui:.2f}, rank +{rank:.2f}", flush=True)
        for size, counted in count(Path(name)).items():
            print_counts(size, counted)


if __name__ == "__main__":
    main()
