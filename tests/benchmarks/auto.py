"""What an automatic plan is worth: the plan that it comes to beside the fastest of all, by trying each.

python -m tests.benchmarks.auto [--rounds 5] [--only NAME] [--json FILE]

A case is a model at a size, on a number of ranks, on a link of a real machine (as in tests/benchmarks/links.py, with
fewer blocks). The ranks, throttled as there, measure what they compute and what the link carries,
`parallel_backend.costs` predicts every exact plan from that, and then every one is run, in rounds whose order changes;
a plan's time is the median over them. So is that of one rank by itself, which runs while the others run the same, each
by itself, as it has less of the machine then; ranks that a plan has no work for are kept busy likewise.

chosen: the plan that is chosen once its own steps, and those of plans chosen before it, have corrected what is
predicted. best: its time by that of the fastest; first: likewise of the plan that is chosen before any step. one rank:
its time by one rank's. predicted, after: by what was measured of it, before any step and as corrected by its own. Of
mixed ranks the last half are twice as slow in products and attention (tests/benchmarks/speed/throttle.py); each plan is
tried evenly and by the speeds that were measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.speed.auto_ranks import ONE, SIZES
from tests.benchmarks.speed.scaling import busy_share
from tests.support.links.link import Link

SECONDS = 3600.0
PROFILES = ("PCIe 3.0 x8", "PCIe 4.0 x16, peer-to-peer", "10 Gbit/s Ethernet")
NEAR, EXPECTED, FEWEST = 1.05, 0.15, 0.9  # of the fastest; of a prediction; of all cases that are to be near
NOISE = 1.02  # of two medians of the same


@dataclass(frozen=True)
class Group:
    """Ranks that are started once. slowed: by rank, how many times slower than it is. sizes: of each model, the last so
    many."""

    slowed: tuple[float, ...]
    sizes: int
    profiles: tuple[str, ...] = PROFILES

    def __str__(self) -> str:
        return f"{len(self.slowed)} ranks" + (", mixed" if max(self.slowed) > 1 else "")

    def cases(self, only: str) -> list[tuple[str, str]]:
        named = ((model, size) for model, (_, sizes) in SIZES.items() for size in list(sizes)[-self.sizes :])
        return [(model, size) for model, size in named if only in f"{model} {size}, {self}"]


GROUPS = (
    Group((1.0, 1.0), 2),
    Group((1.0,) * 4, 1),
    Group((1.0, 2.0), 1, PROFILES[1:2]),
    Group((1.0, 1.0, 2.0, 2.0), 1, PROFILES[1:2]),
)


@dataclass(frozen=True)
class Verdict:
    """Of a case, as ratios. first, near: the time of the plan chosen before any step, and of the one chosen after
    steps, by the fastest's; alone: the latter's by one rank's; before, after: what was predicted of it by its time."""

    chosen: str
    best: str
    seconds: float
    first: float
    near: float
    alone: float
    before: float
    after: float

    @classmethod
    def of(cls, found: dict) -> Verdict:
        medians = {name: statistics.median(seconds) for name, seconds in found["seconds"].items()}
        first, chosen, best = found["chosen"][0], found["chosen"][-1], min(medians, key=lambda name: medians[name])
        own, least = medians[chosen], medians[best]
        before, after = (found[when][chosen] / own for when in ("predicted", "corrected"))
        return cls(chosen, best, own, medians[first] / least, own / least, own / medians[str(ONE)], before, after)


def measure(group: Group, cases: list[tuple[str, str]], rounds: int) -> Iterator[tuple[tuple[str, str], dict | None]]:
    """Each case and what the ranks found of it, None where they failed; others go on then."""
    left = list(cases)
    with Link(len(group.slowed)) as link, tempfile.TemporaryDirectory(prefix="auto-") as folder:
        while left:
            file = Path(folder, f"{len(left)}.json")
            asked = {"cases": left, "rounds": rounds, "profiles": group.profiles, "slowed": group.slowed}
            try:
                link.run("tests.benchmarks.speed.auto_ranks", link.name, json.dumps(asked), str(file), seconds=SECONDS)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                print(error, file=sys.stderr, flush=True)
            found = json.loads(file.read_text()) if file.exists() else []
            yield from zip(left, found, strict=False)
            left = left[len(found) :]
            if left:
                yield left.pop(0), None


def print_summary(verdicts: list[Verdict]) -> int:
    """Prints what holds of all cases; returns how many of the three claims do not."""
    first, near = (sum(getattr(each, which) <= NEAR for each in verdicts) for which in ("first", "near"))
    worse = sum(each.alone > NOISE for each in verdicts)
    expected = sum(abs(each.after - 1) <= EXPECTED for each in verdicts)
    count = len(verdicts)
    before = sum(abs(each.before - 1) <= EXPECTED for each in verdicts)
    print(
        f"\n{count} cases. Within {NEAR - 1:.0%} of the best of all plans: {near}, before any step {first}.\n"
        f"Slower than one rank, by more than {NOISE - 1:.0%}: {worse}.\n"
        f"Predicted within {EXPECTED:.0%} after its first steps: {expected}, before any step {before}."
    )
    return (near < FEWEST * count) + bool(worse) + (expected < count)


def main() -> int:
    """Prints a line a case; returns how many of the claims do not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this: Flux-shaped 1024², 2 ranks, mixed")
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    arguments = parser.parse_args()
    groups = {group: cases for group in GROUPS if (cases := group.cases(arguments.only))}
    if not groups:
        parser.error(f"no case has {arguments.only!r} in its name")
    others = busy_share()
    print(f"{os.cpu_count()} cores, {others:.0%} busy with something else{': NOT QUIET' if others > 0.05 else ''}")
    titles = f"{'s':>7}{'first':>7}{'best':>6}{'one rank':>10}{'predicted':>11}{'after':>7}"
    print(f"{'':44}{'link':28}{'chosen':46}{'fastest':46}{titles}")
    everything, verdicts, failures = {}, [], 0
    for group, cases in groups.items():
        for (model, size), found in measure(group, cases, arguments.rounds):
            name = f"{model} {size}, {group}"
            if found is None:
                failures += 1
                print(f"{name}: FAILED", flush=True)
                continue
            everything[name] = found
            for profile, each in found["profiles"].items():
                verdict = Verdict.of(each)
                verdicts.append(verdict)
                plans = f"{profile:28}{verdict.chosen:46}{verdict.best:46}"
                times = f"{verdict.seconds:7.3f}{verdict.first:7.2f}{verdict.near:6.2f}{verdict.alone:10.2f}"
                print(f"{name:44}{plans}{times}{verdict.before:11.2f}{verdict.after:7.2f}", flush=True)
            for plan, reason in found["refused"].items():
                print(f"  {plan}: {reason}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))
    return failures + print_summary(verdicts) if verdicts else 1


if __name__ == "__main__":
    sys.exit(main())
