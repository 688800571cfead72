"""A step of one rank against stock's, in a ComfyUI of its own: rounds in turns, then the parts of a step by clocks.

python -m tests.benchmarks.host.one_rank COMFYUI [--device cuda] [--rounds 5]

It prints the milliseconds of a step by round, the median of what the rank takes on top, and the median of each part.
The rounds with clocks are not those that are timed. Rehearse it with --device cpu.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from tests.support.host.graphs import TINY_MODELS
from tests.support.report.timing import measure

CLOCKED_ROUNDS = 2
WHOLE = ("stock", "ours")  # parts of ComfyUI's process that contain all others


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.host.one_rank")
    parser.add_argument("comfyui", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = measure(options.comfyui, Path(name) / "timed", options.device, 1, rounds=options.rounds)
        clocks = Path(name) / "clocks"
        clocks.mkdir()
        with_clocks = TINY_MODELS | {"CLOCKS": str(clocks)}
        measure(options.comfyui, Path(name) / "clocked", options.device, 1, with_clocks, CLOCKED_ROUNDS)
        lines = [line.rsplit(maxsplit=2) for file in clocks.iterdir() for line in file.read_text().splitlines()]
    stock, ours = (variant.seconds for variant in found.variants)
    for number, (alone, rank) in enumerate(zip(stock, ours, strict=True), 1):
        print(f"round {number}: stock {1e3 * alone:.2f} ms, one rank {1e3 * rank:.2f}")
    added = statistics.median(rank - alone for alone, rank in zip(stock, ours, strict=True))
    print(f"one rank: {1e3 * added:+.2f} ms a step, the median of {len(stock)} rounds; error {found.variants[1].error}")
    for part, took in sorted(measure_parts([(part, int(began), int(ended)) for part, began, ended in lines]).items()):
        print(f"{part}: {took:.2f} ms")


def measure_parts(lines: list[tuple[str, int, int]]) -> dict[str, float]:
    """Returns the median milliseconds of each part, and of what ComfyUI does between two calls of the model. lines: a
    part, and the microseconds at which it began and ended."""
    parts = defaultdict(list)
    for part, began, ended in lines:
        parts[part].append(ended - began)
    for whole in WHOLE:
        calls = sorted((began, ended) for part, began, ended in lines if part == whole)
        parts[f"{whole}, between calls"] = [began - ended for (_, ended), (began, _) in pairwise(calls)]
    return {part: statistics.median(took) / 1e3 for part, took in parts.items() if took}


if __name__ == "__main__":
    main()
