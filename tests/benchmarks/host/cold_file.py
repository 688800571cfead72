"""How long the blocks of a file that is not in the system's cache take to RAM, as weights=host, with and without asking
the system for them ahead.

python -m tests.benchmarks.host.cold_file [--folder FOLDER] [--gigabytes 2] [--runs 8]

The two take turns. FOLDER is on the disk to measure.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from parallel_backend.weights import read_ahead
from parallel_backend.weights.prefetcher import BlockPrefetcher, blocks_at
from parallel_backend.weights.stores import HostStore

BLOCK = 50_000_000  # bytes
CPU = torch.device("cpu")


class Block(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)


def seconds_of(file: Path) -> float:
    gc.collect()  # of the last model, which maps the file: pages that are mapped stay in the cache
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with safe_open(file, framework="pt") as opened:
        model = torch.nn.Module()
        model.blocks = torch.nn.ModuleList(Block(opened.get_tensor(name)) for name in sorted(opened.keys()))
    fetched = BlockPrefetcher(model, blocks_at(model, ["blocks"]), CPU)
    store = HostStore(fetched.sizes, CPU)
    start = time.perf_counter()
    fetched.rearrange(range(len(fetched.blocks)), store, lambda block: block.block.get_parameter)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--runs", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file, values = Path(folder) / "blocks.safetensors", torch.randn(BLOCK // 2).bfloat16()
        save_file({f"{place:04}": values + place for place in range(int(options.gigabytes * 1e9 / BLOCK))}, file)
        found: dict[str, list[float]] = {"asked for": [], "not asked for": []}
        for _ in range(options.runs):
            for name, seconds in found.items():
                asks = name == "asked for"
                with contextlib.nullcontext() if asks else patch.object(read_ahead, "ask_for", lambda _: 0):
                    seconds.append(seconds_of(file))
    for name, seconds in found.items():
        print(f"{name}: {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})")


if __name__ == "__main__":
    main()
