"""What splitting a VAE over ranks gives: seconds and peak memory a rank, of ComfyUI's own class on one, two and four
ranks, beside the class by itself.

COMFYUI_PATH=.host/ComfyUI python -m tests.benchmarks.vae [--latent 32 24]

image: SD's AutoencoderKL; video: Wan 2.1's; at their full width. Each round starts every number of ranks afresh, one
thread a rank, one after the other, so that a drift of the machine meets all alike; ratios are taken within a round, and
their medians printed. Weights are random. Ranks run on the CPU. Memory is that of tensors, counted as they come and go:
the most there were at a time beside the weights, which every rank has, and the input; rank 0's with the whole result.
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
from tests.benchmarks.speed.throttle import busy_share
from tests.support.cases.vaes.vae_cases import relative_error

MEMORY_TARGET = {2: 0.6, 4: 0.4}  # of one rank's
ERROR_TARGET = 1e-5
MEBI = 1 << 20
STOCK = "stock"
VAES = {"image": 0, "video": 3}  # frames of the latent
WORLDS, ROUNDS = (1, 2, 4), 3
Run = str | int  # STOCK, or the number of ranks


def measured(run: Run, call: dict[str, Any], out: Path) -> dict[str, float]:
    """Of the rank that took longest, and of the one that needed most. The result lies in `out`.safetensors."""
    world = 1 if run == STOCK else run
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    ranks = ["-m", "tests.support.ranks.host.host_vae_ranks", str(out), "{}", json.dumps({**call, STOCK: run == STOCK})]
    subprocess.run([sys.executable, *launch, *ranks], cwd=REPOSITORY, env=environment, check=True)
    found = [json.loads(Path(f"{out}.{rank}.json").read_text()) for rank in range(int(world))]
    return {name: max(each[name] for each in found) for name in ("seconds", "peak")}


def table(call: dict[str, Any], runs: list[Run]) -> bool:
    """Prints it; whether all targets are met."""
    found = []
    with tempfile.TemporaryDirectory(prefix="vae-") as folder:
        for _ in range(ROUNDS):
            found.append({run: measured(run, call, Path(folder) / f"{run}") for run in runs})
        results = {run: load_file(f"{folder}/{run}.safetensors")["result"] for run in runs}
    frames, *sides = call["sizes"]
    size = "×".join(map(str, ([frames] if frames else []) + sides))
    print(f"\n{call['direction']} of a latent of {size} by the {call['vae']}'s VAE\n")
    print(f"{'ranks':>6}{'seconds':>9}{'speed':>7}{'spread':>14}{'MiB a rank':>12}{'share':>7}{'error':>10}  target")
    good = True
    for run in runs:
        speeds = sorted(each[STOCK]["seconds"] / each[run]["seconds"] for each in found)
        share = statistics.median(each[run]["peak"] / each[STOCK]["peak"] for each in found)
        error = relative_error(results[run], results[STOCK])
        met = share < MEMORY_TARGET.get(run, 1.1) and error <= ERROR_TARGET
        good &= met
        verdict = f"share < {MEMORY_TARGET[run]} {'met' if met else 'MISSED'}" if run in MEMORY_TARGET else ""
        seconds, peak = (statistics.median(each[run][name] for each in found) for name in ("seconds", "peak"))
        print(
            f"{run:>6}{seconds:9.2f}{statistics.median(speeds):7.2f}{speeds[0]:8.2f} –{speeds[-1]:5.2f}"
            f"{peak / MEBI:12.1f}{share:7.3f}{error:10.1e}  {verdict}"
        )
    return good


def main() -> int:
    """Prints the tables; returns 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--latent", type=int, nargs=2, default=[32, 24], metavar=("HEIGHT", "WIDTH"))
    arguments = parser.parse_args()
    others = busy_share()
    print(f"{os.cpu_count()} cores, {others:.0%} busy with something else{': NOT QUIET' if others > 0.05 else ''}")
    good = True
    for vae, frames in VAES.items():
        call = {"vae": vae, "direction": "decode", "sizes": [frames, *arguments.latent]}
        good &= table(call, [STOCK, *WORLDS])
    print(
        "\nspeed, share: of the class by itself in one process. MiB a rank: of the rank that needs most.\n"
        "error: the largest difference from the class by itself by its largest value; 1e-5 is allowed."
    )
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
