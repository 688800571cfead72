"""What it saves to share by speed where one of two ranks is slower, beside the least that the two could need.

python -m tests.benchmarks.speed.mixed [--rounds 5]

PixArt's blocks at a quarter of its width, without guidance. The second rank's products and attention are throttled
(throttle.py); the ranks measure each other, and share by what they find
(`parallel_backend.costs.roofline.compare_speeds`).
even, by speed: seconds a step. ratio: of by speed to even. least: one rank's time, on the faster, by the sum of the
speeds; what no way of sharing is below. Each result is compared with one rank's, to 1e-4; that of stages, whose patches
see stale keys, with the even stages' own. Figures are medians over the rounds, in which all runs take turns.
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

SECONDS = 900.0
SLOWED = (1.0, 2.0)  # times, by rank


def measured(rounds: int) -> dict:
    """What rank 0 found."""
    with tempfile.TemporaryDirectory(prefix="mixed-") as folder:
        out = Path(folder) / "found.json"
        options = json.dumps({"slowed": SLOWED, "rounds": rounds})
        program = ["-m", "tests.benchmarks.speed.mixed_ranks", options, str(out)]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *program]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=SECONDS)
        return json.loads(out.read_text())


def main() -> int:
    """Prints a line a way to share."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.speed.mixed")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    found = measured(arguments.rounds)
    speeds = found["speeds"] or [1.0, 1.0]
    print(f"speeds as measured: {' : '.join(f'{speed:g}' for speed in speeds)}")
    print(f"{'':18}{'even s':>9}{'by speed s':>12}{'ratio':>7}{'least s':>9}{'error':>9}")
    for name, seconds in found["seconds"].items():
        one, even, shared = (statistics.median(seconds[kind]) / found["steps"] for kind in ("one", "even", "shared"))
        ratio = statistics.median(b / a for a, b in zip(seconds["even"], seconds["shared"], strict=True))
        least = one / (sum(speeds) / speeds[0])
        print(f"{name:18}{even:9.3f}{shared:12.3f}{ratio:7.2f}{least:9.3f}{found['errors'][name]:9.0e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
