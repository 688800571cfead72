"""What splitting a VAE's decode over ranks gives: seconds and peak memory a rank, on one, two and four ranks.

python -m tests.benchmarks.vae [--channels 32 64 64 64] [--latent 128 128] [--worlds 1 2 4] [--rounds 3]

Each round starts every number of ranks afresh, one thread a rank, one after the other, so that a drift of the machine
meets all alike; ratios are taken within a round, and their medians printed. Weights are random, and on every rank.
Ranks use a GPU each where there are enough, and the CPU otherwise. On the CPU memory is resident memory: the most there
was during the decode, less what there was before the model was built.
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
from typing import Any

from safetensors.torch import load_file

from demo.host import REPOSITORY
from tests.benchmarks.scaling import busy_share
from tests.support.cases.vae_cases import config, relative_error

MEMORY_TARGET = {2: 0.6}
ERROR_TARGET = 1e-5
MEBI = 1 << 20


def run_ranks(world: int, case: dict[str, Any], out: Path) -> list[dict[str, Any]]:
    """One decode by this many ranks; what each measured. The image lies in `out`.safetensors."""
    # Freed tensors go back to the system at once, so that the resident memory is that in use.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(MEBI)}
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    ranks = ["-m", "tests.support.ranks.vae_ranks", str(out), json.dumps(case)]
    subprocess.run([sys.executable, *launch, *ranks], cwd=REPOSITORY, env=environment, check=True)
    return [json.loads(Path(f"{out}.{rank}.json").read_text()) for rank in range(world)]


def main() -> int:
    """Prints the table; returns 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.vae")
    parser.add_argument("--channels", type=int, nargs="+", default=[32, 64, 64, 64], help="of the levels; SD: 128 …")
    parser.add_argument("--groups", type=int, default=8, help="of the norms; SD: 32")
    parser.add_argument("--layers", type=int, default=2, help="resnets a level")
    parser.add_argument("--latent", type=int, nargs=2, default=[128, 128], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    worlds = [1, *(world for world in arguments.worlds if world > 1)]
    case = {
        "config": config(tuple(arguments.channels), arguments.groups, arguments.layers),
        "shape": (1, *arguments.latent),
    }
    others = busy_share()
    print(f"{os.cpu_count()} cores, {others:.0%} busy with something else{': NOT QUIET' if others > 0.05 else ''}")
    rounds = []
    with tempfile.TemporaryDirectory(prefix="vae-") as folder:
        for _ in range(arguments.rounds):
            rounds.append({world: run_ranks(world, case, Path(folder) / f"{world}") for world in worlds})
        images = {world: load_file(f"{folder}/{world}.safetensors")["large"] for world in worlds}
        errors = {world: relative_error(images[world], images[1]) for world in worlds}
    sides = "×".join(map(str, arguments.latent))
    weights = rounds[0][1][0]["weights"] / MEBI
    print(f"latent of {sides}, levels of {arguments.channels} channels, weights of {weights:.1f} MiB on every rank\n")
    print(f"{'ranks':>5}{'seconds':>9}{'speed':>7}{'spread':>14}{'MiB a rank':>12}{'share':>7}{'error':>10}  target")
    missed = 0
    for world in worlds:
        seconds = [max(rank["seconds"] for rank in run[world]) for run in rounds]
        speeds = sorted(run[1][0]["seconds"] / this for run, this in zip(rounds, seconds, strict=True))
        peaks = [max(rank["peak"] for rank in run[world]) for run in rounds]
        share = statistics.median(peak / run[1][0]["peak"] for run, peak in zip(rounds, peaks, strict=True))
        met = share < MEMORY_TARGET.get(world, 1.01) and errors[world] <= ERROR_TARGET
        missed += not met
        verdict = f"share < {MEMORY_TARGET[world]} {'met' if met else 'MISSED'}" if world in MEMORY_TARGET else ""
        print(
            f"{world:5}{statistics.median(seconds):9.2f}{statistics.median(speeds):7.2f}"
            f"{speeds[0]:8.2f} –{speeds[-1]:5.2f}{statistics.median(peaks) / MEBI:12.1f}{share:7.3f}"
            f"{errors[world]:10.1e}  {verdict}"
        )
    print(
        "\nspeed: one rank's time by these ranks'. MiB a rank: of the rank that needs most, weights included. share:\n"
        "of one rank's. error: the largest difference from one rank's image by its largest value, 1e-5 allowed."
    )
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
