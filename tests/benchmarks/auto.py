"""What an automatic plan is worth: the plan that it comes to beside the fastest of all, by trying each.

python -m tests.benchmarks.auto [--rounds 5] [--only NAME] [--json FILE] [--minutes 25]

A case is a model at a size, on a number of ranks, on a link of a real machine (as in tests/benchmarks/links.py, with
fewer blocks). The ranks, throttled as there, measure what they compute and what the link carries. Then every exact plan
is run, in rounds whose order changes; a plan's time is the median over them. So is that of one rank by itself, which
runs while the others run the same, each by itself, as it has less of the machine then; ranks that a plan has no work
for are kept busy likewise.

first: the plan that `parallel_backend.costs` predicts to be the fastest. settled: the plan that stays after three
samplings; a sampling takes what the plan took in one round. Both times are by the fastest plan's. one rank: the settled
plan's time by one rank's. about: what was predicted of the fastest plan by its time. Of mixed ranks the last half are
twice as slow in products and attention (tests/benchmarks/speed/throttle.py); each plan is tried evenly and by the
speeds that were measured.

With --json, a run goes on where the last one stopped: what the file has is not measured again, and each case is in it
as soon as it is measured. --minutes: no case begins after so many. The summary is of all cases that the file has.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from parallel_backend.costs.choose import choose_prediction
from parallel_backend.costs.forward import Cost, ForwardCost, Work
from parallel_backend.costs.machine import Machine
from parallel_backend.costs.roofline import predict
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.sizes import WeightSizes
from tests.benchmarks.speed.auto_ranks import SIZES
from tests.benchmarks.speed.throttle import busy_share
from tests.support.links.link import Link

SECONDS = 3600.0
PROFILES = ("PCIe 3.0 x8", "PCIe 4.0 x16, peer-to-peer", "10 Gbit/s Ethernet")
NEAR, FEWEST = 1.1, 40 / 44  # of the fastest's time, and of all cases
SLOWER = 1.03  # than one rank
SAMPLINGS = 3  # before the plan is settled


@dataclass(frozen=True)
class Group:
    """slowed: by rank, how many times slower than it is. sizes: of each model, the last so many."""

    slowed: tuple[float, ...]
    sizes: int
    profiles: tuple[str, ...] = PROFILES

    def __str__(self) -> str:
        return f"{len(self.slowed)} ranks" + (", mixed" if max(self.slowed) > 1 else "")

    def name(self, model: str, size: str) -> str:
        return ", ".join((f"{model} {size}".rstrip(), str(self)))

    def cases(self, only: str) -> list[tuple[str, str]]:
        """Models and sizes."""
        named = [(model, size) for model, (_, sizes) in SIZES.items() for size in list(sizes)[-self.sizes :]]
        return [case for case in named if only in self.name(*case)]


GROUPS = (
    Group((1.0, 1.0), 2),
    Group((1.0,) * 4, 1),
    Group((1.0, 2.0), 1, PROFILES[1:2]),
    Group((1.0, 1.0, 2.0, 2.0), 1, PROFILES[1:2]),
)


@dataclass(frozen=True)
class Verdict:
    """Of a case. seconds: of the settled plan's step. As ratios, first, settled: the time of the plan that runs first,
    and of the settled one, by the fastest's; alone: the latter's by one rank's; about: see above."""

    chosen: str
    best: str
    seconds: float
    first: float
    settled: float
    alone: float
    about: float

    @classmethod
    def of(cls, case: dict, profile: dict) -> Verdict:
        """case: what was found of a model at a size. profile: the same over one link."""
        cost = case["forward"]["cost"]
        forward = ForwardCost(**{**cost, **{name: Cost(*cost[name]) for name in ("blocks", "rest")}})
        work, sizes = Work(case["forward"]["rows"], forward=forward), WeightSizes(0)
        machine, seconds = Machine.of(profile["machine"]), profile["seconds"]
        plans = [ParallelPlan.from_json(each) for each in case["plans"].values()]
        found = sorted((predict(work, plan, machine, sizes) for plan in plans), key=lambda each: each.seconds)
        names = {each.words: name for each, name in ((each, str(each.plan)) for each in found)}
        measured: dict[str, float] = {}
        for turn in range(SAMPLINGS):
            words = choose_prediction(found, measured)[0].words
            took = seconds[names[words]]
            measured[words] = min(measured.get(words, math.inf), took[turn % len(took)])
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        chosen, first = (names[choose_prediction(found, known)[0].words] for known in (measured, {}))
        best = min(medians, key=lambda name: medians[name])
        about = {str(each.plan): each.seconds for each in found}[best] / medians[best]
        own, least = medians[chosen], medians[best]
        return cls(chosen, best, own, medians[first] / least, own / least, own / medians[str(ParallelPlan())], about)


def measure(group: Group, model: str, size: str, rounds: int, link: Link) -> dict | None:
    """What the ranks found of a case; None where they failed."""
    with tempfile.TemporaryDirectory(prefix="auto-") as folder:
        file = Path(folder, "found.json")
        asked = {"case": (model, size), "rounds": rounds, "profiles": group.profiles, "slowed": group.slowed}
        try:
            link.run("tests.benchmarks.speed.auto_ranks", link.name, json.dumps(asked), str(file), seconds=SECONDS)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr, flush=True)
        return json.loads(file.read_text()) if file.exists() else None


def print_case(name: str, found: dict) -> list[Verdict]:
    """Prints a line a link."""
    verdicts = []
    for profile, each in found["profiles"].items():
        verdict = Verdict.of(found, each)
        verdicts.append(verdict)
        plans = f"{profile:28}{verdict.chosen:46}{verdict.best:46}"
        times = f"{verdict.seconds:7.3f}{verdict.first:7.2f}{verdict.settled:9.2f}{verdict.alone:10.2f}"
        print(f"{name:44}{plans}{times}{verdict.about:7.2f}", flush=True)
    for plan, reason in found["refused"].items():
        print(f"  {plan}: {reason}", flush=True)
    return verdicts


def print_summary(verdicts: list[Verdict]) -> int:
    """Prints what holds of all cases; returns how many of the claims do not."""
    count = len(verdicts)
    first, settled = (sum(getattr(each, which) <= NEAR for each in verdicts) for which in ("first", "settled"))
    worse = sum(each.alone > SLOWER for each in verdicts)
    print(
        f"\n{count} cases.\n"
        f"Within {NEAR - 1:.0%} of the fastest of all plans: {settled} after {SAMPLINGS} samplings, {first} at first. "
        f"Asked for: {FEWEST:.0%}.\n"
        f"Slower than one rank by more than {SLOWER - 1:.0%}: {worse}. Asked for: none."
    )
    return (settled < FEWEST * count) + bool(worse)


def main() -> int:
    """Prints a line a case; returns how many of the claims do not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this: Flux-shaped 1024², 2 ranks, mixed")
    parser.add_argument("--json", type=Path, help="a file for all that is measured, with what was before")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no case begins")
    arguments = parser.parse_args()
    cases = [(group, *case) for group in GROUPS for case in group.cases(arguments.only)]
    if not cases:
        parser.error(f"no case has {arguments.only!r} in its name")
    others = busy_share()
    print(f"{os.cpu_count()} cores, {others:.0%} busy with something else{': NOT QUIET' if others > 0.05 else ''}")
    titles = f"{'s':>7}{'first':>7}{'settled':>9}{'one rank':>10}{'about':>7}"
    print(f"{'':44}{'link':28}{'settled':46}{'fastest':46}{titles}")
    file, until = arguments.json, time.monotonic() + 60 * arguments.minutes
    everything = json.loads(file.read_text()) if file and file.exists() else {}
    verdicts, failures, left = [], 0, 0
    for group, model, size in cases:
        name = group.name(model, size)
        if name not in everything:
            if time.monotonic() > until:
                left += 1
                continue
            with Link(len(group.slowed)) as link:
                found = measure(group, model, size, arguments.rounds, link)
            if found is None:
                failures += 1
                print(f"{name}: FAILED", flush=True)
                continue
            everything[name] = found
            if file:
                file.write_text(json.dumps(everything, indent=1))
        verdicts += print_case(name, everything[name])
    if left:
        print(f"{left} models and sizes are left: run the same again.")
    return failures + left + print_summary(verdicts) if verdicts else 1


if __name__ == "__main__":
    sys.exit(main())
