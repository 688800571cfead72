"""A step of one rank against stock's, in a ComfyUI of its own: five rounds in turns, then a profile of both processes.

python -m tests.benchmarks.host.one_rank COMFYUI OUT [--device cuda] [--rounds 5]

It prints the milliseconds of a step by round, and the median of what the rank takes on top. OUT gets tables of torch's
profiler: of stock, of ComfyUI's process beside a rank, and of the rank. The profiled steps are not timed. Rehearse it
with --device cpu.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.support.host.graphs import TINY_MODELS
from tests.support.report.timing import measure

PROFILED_ROUNDS = 5  # enough for the steps that `profiling` leaves out, also with the few of a rehearsal


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.host.one_rank")
    parser.add_argument("comfyui", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    profiled = TINY_MODELS | {"PROFILE": str(options.out.resolve())}
    with tempfile.TemporaryDirectory() as name:
        found = measure(options.comfyui, Path(name) / "timed", options.device, 1, rounds=options.rounds)
        measure(options.comfyui, Path(name) / "profiled", options.device, 1, profiled, PROFILED_ROUNDS)
    stock, ours = (variant.seconds for variant in found.variants)
    for number, (alone, rank) in enumerate(zip(stock, ours, strict=True), 1):
        print(f"round {number}: stock {1e3 * alone:.2f} ms, one rank {1e3 * rank:.2f}")
    added = statistics.median(rank - alone for alone, rank in zip(stock, ours, strict=True))
    print(f"one rank: {1e3 * added:+.2f} ms a step, the median of {len(stock)} rounds; error {found.variants[1].error}")


if __name__ == "__main__":
    main()
