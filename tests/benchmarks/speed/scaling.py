"""How much faster two ranks are than one, what they send, and where the time goes.

python -m tests.benchmarks.speed.scaling [--rounds 7] [--small]

One torchrun of two ranks with one thread each runs every variant in each round, in an order that changes by round, so
that a drift of the machine meets all alike; ratios are taken within a round, and the medians of them printed. A
variant on one rank runs on rank 0 while rank 1 sleeps in a barrier, so it has the machine to itself, as in a plain
script; "one rank, twice" runs it on both at once, which shows what sharing the memory costs (the bound of two ranks).

Models have random weights. A step is one forward of cond and uncond together, guidance, and one scheduler step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from demo.host import REPOSITORY
from parallel_backend.plan import ParallelPlan

RANKS = 2
FLOAT = 4
SLACK = 1.05
MEBI = 1 << 20


@dataclass(frozen=True)
class Shape:
    """The size of a benchmark model: `width` = heads × 64, image tokens = side², and tokens of text."""

    model: str
    heads: int = 8
    layers: int = 8
    single_layers: int = 0
    side: int = 24
    text: int = 120
    text_width: int = 1024

    @property
    def blocks(self) -> int:
        return self.layers + self.single_layers

    @property
    def stream_bytes(self) -> int:
        """The A of the formulas: the tokens of the sequence between the blocks, for cond and uncond, in fp32."""
        tokens = self.side**2 + (self.text if self.model == "flux" else 0)
        return 2 * tokens * self.heads * 64 * FLOAT

    @property
    def latent_bytes(self) -> int:
        return 4 * (2 * self.side) ** 2 * FLOAT


SHAPES = {
    "pixart": Shape("pixart"),
    "flux": Shape("flux", layers=2, single_layers=4, text=64),
}
SMALL = {name: replace(shape, heads=2, layers=2, side=8, text=16) for name, shape in SHAPES.items()}


@dataclass(frozen=True)
class Variant:
    """One way to sample.

    plan: of the engine. alone: on rank 0, or on both side by side, with no group. peer: diffusers' context parallel.
    images: batch without guidance, in place of cond and uncond.
    sent: bytes that a rank may send a step, by the formula.
    """

    name: str
    model: str = "pixart"
    plan: dict[str, int] | None = None
    alone: str = ""
    peer: bool = False
    images: int = 0
    steps: int = 3
    target: float | None = None
    formula: str = ""
    sent: Callable[[Shape], float] | None = None

    @property
    def stale(self) -> bool:
        return bool(self.plan) and self.plan.get("pipefusion", 1) > 1


def ulysses(shape: Shape) -> float:
    return 4 * shape.stream_bytes * (RANKS - 1) / RANKS**2 * shape.blocks


def ring(shape: Shape) -> float:
    return 2 * shape.stream_bytes * (RANKS - 1) / RANKS * shape.blocks


def pipefusion(shape: Shape) -> float:
    return 2 * shape.stream_bytes


def latent(shape: Shape) -> float:
    return shape.latent_bytes


ULYSSES = {"formula": "4A(N-1)/N² L", "sent": ulysses}
PIPEFUSION = {"formula": "2A", "sent": pipefusion, "steps": 16}
VARIANTS = [
    Variant("one rank", alone="one"),
    Variant("one rank, twice", alone="both"),
    Variant("ulysses 2", plan={"ulysses": 2}, target=1.9, **ULYSSES),
    Variant("cfg 2", plan={"cfg": 2}, target=1.97, formula="latent", sent=latent),
    Variant("ring 2", plan={"ring": 2}, target=1.85, formula="2A(N-1)/N L", sent=ring),
    Variant("dp 2", plan={"dp": 2}, images=2, formula="latent", sent=latent),
    Variant("pipefusion 2, 2 patches", plan={"pipefusion": 2, "patches": 2}, target=1.9, **PIPEFUSION),
    Variant("pipefusion 2, 4 patches", plan={"pipefusion": 2, "patches": 4}, target=1.9, **PIPEFUSION),
    Variant("flux, one rank", "flux", alone="one"),
    Variant("flux, ulysses 2", "flux", plan={"ulysses": 2}, **ULYSSES),
    Variant("flux, diffusers' ulysses 2", "flux", peer=True, **ULYSSES),
    Variant("flux, ring 2", "flux", plan={"ring": 2}, formula="2A(N-1)/N L", sent=ring),
]
PLAN_FIELDS = {field.name for field in fields(ParallelPlan)}
VARIANTS = [variant for variant in VARIANTS if set(variant.plan or {}) <= PLAN_FIELDS]


def busy_share(seconds: float = 1.0) -> float:
    """The share of the machine's CPU time that others use now."""

    def ticks() -> tuple[int, int]:
        values = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(values), values[3] + values[4]

    total, idle = ticks()
    time.sleep(seconds)
    later, idle_later = ticks()
    return 1 - (idle_later - idle) / max(1, later - total)


def run_ranks(arguments: argparse.Namespace) -> list[dict]:
    """What each rank measured, see scaling_ranks."""
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        options = {"rounds": arguments.rounds, "small": arguments.small, "only": arguments.only}
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        ranks = ["-m", "tests.support.ranks.speed.scaling_ranks", json.dumps(options), folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *launch, *ranks], cwd=REPOSITORY, env=environment, check=True)
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]


@dataclass(frozen=True)
class Figures:
    """Of a variant: seconds a step by round, and of the rank that is slowest in it, what a step consists of.

    flops: of the busiest rank. sent: bytes a step by call, of the rank that sends most.
    """

    seconds: list[float]
    stale_seconds: list[float]
    communicating: float
    busy: float
    background: float
    flops: float | None
    sent: dict[str, float]
    calls: dict[str, float]
    spent: dict[str, float]


def figures(variant: Variant, by_rank: list[dict]) -> Figures:
    """Joins what the ranks measured."""
    runs = [rank["runs"][variant.name] for rank in by_rank if variant.name in rank["runs"]]
    rounds = list(zip(*runs, strict=True))
    most = max(runs, key=lambda rank: sum(rank[0]["sent"].values()))
    median = statistics.median
    return Figures(
        seconds=[max(run["seconds"] for run in ranks) for ranks in rounds],
        stale_seconds=[ranks[0]["stale_seconds"] for ranks in rounds] if variant.stale else [],
        communicating=max(median(run["communicating"] for run in rank) for rank in runs),
        busy=max(median(run["busy"] for run in rank) for rank in runs),
        background=max(median(run["background"] for run in rank) for rank in runs),
        flops=max(rank["flops"].get(variant.name) or 0 for rank in by_rank) or None,
        sent=most[0]["sent"],
        calls=most[0]["calls"],
        spent={name: median(run["spent"].get(name, 0) for run in most) for name in most[0]["spent"]},
    )


def verdict(ratio: float, target: float | None) -> str:
    return "" if target is None else f"{target:.2f} {'met' if ratio >= target else 'MISSED'}"


def print_speeds(variants: list[Variant], found: dict[str, Figures]) -> int:
    """Prints the table of times; returns how many targets are missed."""
    missed = 0
    apart = found.get("one rank, twice")
    reach = (
        RANKS
        * statistics.median(one / both for one, both in zip(found["one rank"].seconds, apart.seconds, strict=True))
        if apart
        else RANKS
    )
    titles = [
        f"{'s a step':>9}{'ratio':>7}{'spread':>14}",
        f"{'target':13}{'bound':>6}{'reach':>6}{'busy':>8}{'in dist':>8}{'threads':>8}",
    ]
    print(f"\n{'':32}{'   '.join(titles)}")
    for variant in variants:
        this = found[variant.name]
        base = found["flux, one rank" if variant.model == "flux" else "one rank"]
        rows = [(variant.name, this.seconds, None if variant.stale else variant.target)]
        if variant.stale:
            rows = [(f"{variant.name}: stale", this.stale_seconds, variant.target), (f"{'':4}whole run", *rows[0][1:])]
        copies = RANKS if variant.alone == "both" else 1
        for name, seconds, target in rows:
            ratios = sorted(copies * one / this_one for one, this_one in zip(base.seconds, seconds, strict=True))
            ratio = statistics.median(ratios)
            missed += target is not None and ratio < target
            bound = f"{copies * base.flops / this.flops:.2f}" if this.flops else "–"
            speed = f"{statistics.median(seconds):9.3f}{ratio:7.2f}{ratios[0]:8.2f} –{ratios[-1]:5.2f}"
            parts = f"{this.busy:8.3f}{this.communicating:8.3f}{this.background:8.3f}"
            print(f"{name:32}{speed}   {verdict(ratio, target):13}{bound:>6}{ratio / reach:6.0%}{parts}")
    print(
        "ratio: one rank's time by this one's, median over the rounds. bound: one rank's floating-point operations by\n"
        "those of the busiest rank; work done twice lowers it. reach: the ratio by that of 'one rank, twice', two\n"
        "processes that share nothing but the machine. Of a step, on the rank that has most of it: busy, CPU\n"
        "seconds of the calling thread; in dist, seconds that it is inside torch.distributed, waiting for the peer\n"
        "included; threads, CPU seconds of the other threads, which are gloo's."
    )
    return missed


def print_bytes(variants: list[Variant], shapes: dict[str, Shape], found: dict[str, Figures]) -> int:
    """Prints what the rank that sends most sends a step, beside the formula; returns the number of defects."""
    defects = 0
    print(
        f"\n{'MiB sent a step':32}{'counted':>9}{'formula':>9}{'ratio':>7}             by call (MiB, calls, ms in it)"
    )
    for variant in variants:
        if not variant.sent:
            continue
        this = found[variant.name]
        counted, allowed = sum(this.sent.values()), variant.sent(shapes[variant.model])
        defect = counted > SLACK * allowed and not variant.peer
        defects += defect
        calls = ", ".join(
            f"{name} {this.sent.get(name, 0) / MEBI:.2f} ×{count:g} {this.spent.get(name, 0) * 1e3:.0f} ms"
            for name, count in this.calls.items()
            if this.sent.get(name) or this.spent.get(name, 0) > 1e-3
        )
        print(
            f"{variant.name:32}{counted / MEBI:9.3f}{allowed / MEBI:9.3f}{counted / allowed:7.3f} "
            f"{'DEFECT' if defect else '':6} {variant.formula:13}{calls}"
        )
    for name, shape in shapes.items():
        print(f"{name}: A = {shape.stream_bytes / MEBI:.2f} MiB, L = {shape.blocks}, N = {RANKS}; {shape}")
    return defects


def main() -> int:
    """Prints the tables; returns 1 where a target is missed or more is sent than the formulas allow."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.speed.scaling")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="tiny models: whether it runs, not how fast")
    parser.add_argument("--only", default="", help="variants whose name contains this, beside those on one rank")
    arguments = parser.parse_args()
    others = busy_share()
    print(f"{os.cpu_count()} cores, {others:.0%} busy with something else{': NOT QUIET' if others > 0.05 else ''}")
    by_rank = run_ranks(arguments)
    variants = [variant for variant in VARIANTS if variant.name in by_rank[0]["runs"]]
    found = {variant.name: figures(variant, by_rank) for variant in variants}
    missed = print_speeds(variants, found)
    defects = print_bytes(variants, SMALL if arguments.small else SHAPES, found)
    print(f"\n{missed} targets missed, {defects} defects")
    return int(bool(missed or defects))


if __name__ == "__main__":
    sys.exit(main())
