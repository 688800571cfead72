"""What an automatic plan is worth: the plan that it comes to beside the fastest of all, by trying each.

python -m tests.benchmarks.auto [--rounds 5] [--only NAME] [--without NAME] [--json FILE] [--minutes 25] [--lossy]

A case is a model at a size, on a number of ranks, on a link of a real machine (as in tests/benchmarks/links.py, with
fewer blocks). The ranks, throttled as there, measure what they compute and what the link carries,
`parallel_backend.costs` predicts every exact plan from that, and then every one is run, in rounds whose order changes;
a plan's time is the median over them. So is that of one rank by itself, which runs while the others run the same, each
by itself, as it has less of the machine then; ranks that a plan has no work for are kept busy likewise.

chosen: the plan that is chosen once its own steps, and those of plans chosen before it, have corrected what is
predicted. best: its time by that of the fastest; first: likewise of the plan that is chosen before any step. one rank:
its time by one rank's. predicted, after: by what was measured of it, before any step and as corrected by three of its
own. Of mixed ranks the last half are twice as slow in products and attention (tests/benchmarks/speed/throttle.py); each
plan is tried evenly and by the speeds that were measured.

With --json, a run goes on where the last one stopped: what the file has is not measured again, and each case is in it
as soon as it is measured. --minutes: no case begins after so many. The summary is of all cases that the file has.

--lossy: PipeFusion and a lossy exchange instead, of deep models (link_cases.py), beside exact plans. Each is predicted
and measured twice: as a step for a stock sampler, and in a loop on the ranks, where a step is the median of the steps
that follow the first ones. `predicted`, `measured` and the ratio are printed for each plan. The link is shared: what
one rank sends while the others are silent goes as many times faster as there are ranks (tests/support/links/link.py),
so a stage's messages are predicted too slow here.
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
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.speed.auto_ranks import CORRECTING, ONE, SIZES
from tests.benchmarks.speed.link_cases import CASES
from tests.benchmarks.speed.throttle import busy_share
from tests.support.links.link import Link

SECONDS = 3600.0
LOSSY_PROFILES = ("PCIe 4.0 x16", "10 Gbit/s Ethernet")
PROFILES = ("PCIe 3.0 x8", "PCIe 4.0 x16, peer-to-peer", "10 Gbit/s Ethernet")
NEAR = 1.05  # of the fastest
EXPECTED, LEARNT = 0.15, 0.05  # of a prediction, before any step and after some
FEWEST_EXPECTED, FEWEST_NEAR = 0.9, 42 / 44  # of all cases
NOISE = 1.02  # of two medians of the same


@dataclass(frozen=True)
class Group:
    """slowed: by rank, how many times slower than it is. sizes: of each model, the last so many; 0 for deep ones."""

    slowed: tuple[float, ...]
    sizes: int
    profiles: tuple[str, ...] = PROFILES

    def __str__(self) -> str:
        return f"{len(self.slowed)} ranks" + (", mixed" if max(self.slowed) > 1 else "")

    def name(self, model: str, size: str) -> str:
        return ", ".join((f"{model} {size}".rstrip(), str(self)))

    def cases(self, only: str, without: str | None) -> list[tuple[str, str]]:
        """Models and sizes. Deep ones have one size, without a name."""
        named = [(model, size) for model, (_, sizes) in SIZES.items() for size in list(sizes)[-self.sizes :]]
        found = named if self.sizes else [(name, "") for name, case in CASES.items() if case.is_deep]
        names = {case: self.name(*case) for case in found}
        return [case for case, name in names.items() if only in name and (without is None or without not in name)]


GROUPS = (
    Group((1.0, 1.0), 2),
    Group((1.0,) * 4, 1),
    Group((1.0, 2.0), 1, PROFILES[1:2]),
    Group((1.0, 1.0, 2.0, 2.0), 1, PROFILES[1:2]),
)
LOSSY_GROUPS = (Group((1.0, 1.0), 0, LOSSY_PROFILES), Group((1.0,) * 4, 0, LOSSY_PROFILES))


@dataclass(frozen=True)
class Verdict:
    """Of a case, as ratios. first, near: the time of the plan chosen before any step, and of the one chosen after
    steps, by the fastest's; alone: the latter's by one rank's; before, after: what was predicted of it by its time.
    plans: of every plan, what was predicted before any step by its time."""

    chosen: str
    best: str
    seconds: float
    first: float
    near: float
    alone: float
    before: float
    after: float
    plans: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, found: dict) -> Verdict:
        medians = {name: statistics.median(seconds) for name, seconds in found["seconds"].items()}
        first, chosen, best = found["chosen"][0], found["chosen"][-1], min(medians, key=lambda name: medians[name])
        own, least = medians[chosen], medians[best]
        before, after = (found[when][chosen] / own for when in ("predicted", "corrected"))
        ratios = [found["predicted"][name] / seconds for name, seconds in medians.items()]
        times = (own, medians[first] / least, own / least, own / medians[str(ONE)])
        return cls(chosen, best, *times, before, after, ratios)


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
        verdict = Verdict.of(each)
        verdicts.append(verdict)
        plans = f"{profile:28}{verdict.chosen:46}{verdict.best:46}"
        times = f"{verdict.seconds:7.3f}{verdict.first:7.2f}{verdict.near:6.2f}{verdict.alone:10.2f}"
        print(f"{name:44}{plans}{times}{verdict.before:11.2f}{verdict.after:7.2f}", flush=True)
    for plan, reason in found["refused"].items():
        print(f"  {plan}: {reason}", flush=True)
    return verdicts


def print_summary(verdicts: list[Verdict]) -> int:
    """Prints what holds of all cases; returns how many of the claims do not."""
    count = len(verdicts)
    first, near = (sum(getattr(each, which) <= NEAR for each in verdicts) for which in ("first", "near"))
    worse = sum(each.alone > NOISE for each in verdicts)
    before = sum(abs(each.before - 1) <= EXPECTED for each in verdicts)
    after = sum(abs(each.after - 1) <= LEARNT for each in verdicts)
    plans = [ratio for each in verdicts for ratio in each.plans]
    among = sum(abs(ratio - 1) <= EXPECTED for ratio in plans)
    print(
        f"\n{count} cases.\n"
        f"Predicted within {EXPECTED:.0%} before the first step: {before} (of all plans {among} of {len(plans)}). "
        f"Asked for: {FEWEST_EXPECTED:.0%}.\n"
        f"Predicted within {LEARNT:.0%} after {CORRECTING} steps: {after}. Asked for: all.\n"
        f"auto within {NEAR - 1:.0%} of the best of all plans: {near}, before any step {first}. "
        f"Asked for: {FEWEST_NEAR:.0%}.\n"
        f"Slower than one rank by more than {NOISE - 1:.0%}: {worse}. Asked for: none."
    )
    return (before < FEWEST_EXPECTED * count) + (after < count) + (near < FEWEST_NEAR * count) + bool(worse)


def print_lossy(name: str, found: dict) -> list[float]:
    """Prints a line a plan; returns the ratios of what is predicted to what is measured."""
    ratios = []
    for profile, each in found["profiles"].items():
        print(f"\n{name}, {profile}\n{'':60}{'predicted':>11}{'measured':>11}{'ratio':>8}")
        for plan, seconds in each["seconds"].items():
            predicted, measured = each["predicted"][plan], statistics.median(seconds)
            ratios.append(predicted / measured)
            print(f"{plan:60}{predicted:11.3f}{measured:11.3f}{predicted / measured:8.2f}", flush=True)
    for plan, reason in found["refused"].items():
        print(f"  {plan}: {reason}", flush=True)
    return ratios


def main() -> int:
    """Prints a line a case; returns how many of the claims do not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this: Flux-shaped 1024², 2 ranks, mixed")
    parser.add_argument("--without", default=None, help="no cases whose name contains this: SDXL")
    parser.add_argument("--json", type=Path, help="a file for all that is measured, with what was before")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no case begins")
    parser.add_argument("--lossy", action="store_true", help="PipeFusion and a lossy exchange, predicted and measured")
    arguments = parser.parse_args()
    groups = LOSSY_GROUPS if arguments.lossy else GROUPS
    cases = [(group, *case) for group in groups for case in group.cases(arguments.only, arguments.without)]
    if not cases:
        parser.error(f"no case has {arguments.only!r} in its name")
    others = busy_share()
    print(f"{os.cpu_count()} cores, {others:.0%} busy with something else{': NOT QUIET' if others > 0.05 else ''}")
    titles = f"{'s':>7}{'first':>7}{'best':>6}{'one rank':>10}{'predicted':>11}{'after':>7}"
    if not arguments.lossy:
        print(f"{'':44}{'link':28}{'chosen':46}{'fastest':46}{titles}")
    file, until = arguments.json, time.monotonic() + 60 * arguments.minutes
    everything = json.loads(file.read_text()) if file and file.exists() else {}
    verdicts, ratios, failures, left = [], [], 0, 0
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
        if arguments.lossy:
            ratios += print_lossy(name, everything[name])
        else:
            verdicts += print_case(name, everything[name])
    if left:
        print(f"{left} models and sizes are left: run the same again.")
    if ratios:
        within = sum(abs(ratio - 1) <= EXPECTED for ratio in ratios)
        print(f"\n{within} of {len(ratios)} are predicted within {EXPECTED:.0%}, before any step.")
        return failures + left
    return failures + left + print_summary(verdicts) if verdicts else 1


if __name__ == "__main__":
    sys.exit(main())
