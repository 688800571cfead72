"""What compiled blocks save in a step, and what it takes to compile them, on CPU ranks: inductor makes C++ of graphs.

python -m tests.benchmarks.speed.compiled [--ranks 1 2] [--rounds 7] [--json FILE]

Flux's blocks at a quarter of its width, under ulysses; in each round a step as it is, and one compiled. Inductor's
cache is empty at first. Ratio: the median over the rounds. Steps to pay: those whose saving is the time that the first
compiled step takes longer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 1800.0


def measured(ranks: int, rounds: int) -> dict:
    """What rank 0 found."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor"), "OMP_NUM_THREADS": "1"}
        program = ["-m", "tests.benchmarks.speed.compiled_ranks", str(rounds), str(out)]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *program]
        subprocess.run(command, check=True, env={**os.environ, **cache}, timeout=SECONDS)
        return json.loads(out.read_text())


def main() -> int:
    """Prints a line a number of ranks."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.speed.compiled")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    arguments = parser.parse_args()
    found = {ranks: measured(ranks, arguments.rounds) for ranks in arguments.ranks}
    print("ranks   eager s   compiled s   ratio   first step s   another size s   steps to pay   error")
    for ranks, one in found.items():
        eager, fast = (statistics.median(one[name]) for name in ("eager", "compiled"))
        ratio = statistics.median(b / a for a, b in zip(one["eager"], one["compiled"], strict=True))
        pay = f"{(one['first'] - eager) / (eager * (1 - ratio)):.0f}" if ratio < 1 else "never"
        print(
            f"{ranks:5}{eager:10.2f}{fast:13.2f}{ratio:8.2f}{one['first']:15.1f}{one['other']:17.1f}{pay:>15}"
            f"{one['error']:8.0e}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
