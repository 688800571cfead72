"""What of fetching weights is exposed: a step with weights=whole beside shared and host, on links of real machines.

python -m tests.benchmarks.speed.overlap [--ranks 2] [--rounds 3] [--only PROFILE] [--json FILE]

Models are Flux-dev and Wan 2.1 14B with 1/6 and 1/16 of the width and of the tokens, and fewer blocks, on a link that
is slower by the rule of tests/support/links/profiles.py, from the FLOP/s that the ranks reach. Every way to keep the
weights has a model of its own; every round measures the FLOP/s, and then all ways on every link, in an order that
changes. Figures are medians over the rounds, of ratios and differences within one. Results must be equal to the bit.

exposed: seconds that a step takes longer than with whole weights, of those that the fetched bytes take on the link. The
first fetch of a forward hides behind nothing; with few blocks it weighs more than in the real model. From host memory
the CPU copies at once: the time that a card's copy engine would take is waited for, copy after copy, beside the
computing. gloo takes CPU time for its copies, and the ranks compute the slower for it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from parallel_backend.plan import SHARED
from tests.benchmarks.speed.overlap_ranks import CASES, WAYS
from tests.benchmarks.speed.scaling import busy_share
from tests.support.links.link import Link
from tests.support.links.profiles import PROFILES

SECONDS = 3600.0


def print_case(name: str, found: dict) -> None:
    """found: of one case, as the ranks wrote it."""
    median = statistics.median
    print(f"\n{name}, plan {found['plan']}: {median(found['flops']) / 1e9:.0f} GFLOP/s a rank")
    print(f"{'':27}{'MB/s':>7}{'whole':>8}" + "".join(f"{way:>24}" for way in WAYS[1:]))
    fetched = [found["bytes"][way] for way in WAYS[1:]]
    parts = "".join(f"{sum(sizes) / 1e6:15.0f} MB, {sizes[0] / sum(sizes):4.0%}" for sizes in fetched)
    print(f"{'bytes of all, of the first':34}{'s':>8}{parts}")
    print(f"{'':42}" + f"{'ratio   exposed':>24}" * len(fetched))
    for profile, runs in found["runs"].items():
        whole, rates = runs[WAYS[0]], found["rates"][profile]
        line = f"{profile:27}{median(rate[SHARED] for rate in rates) / 1e6:7.1f}{median(whole):8.2f}"
        for way in WAYS[1:]:
            ratio = median(this / base for this, base in zip(runs[way], whole, strict=True))
            exposed = median(this - base for this, base in zip(runs[way], whole, strict=True))
            fetch = median(sum(found["bytes"][way]) / rate[found["kinds"][way]] for rate in rates)
            line += f"{ratio:10.2f}{exposed:6.2f} of{fetch:5.2f}"
        print(line)


def main() -> int:
    """Prints a table a model."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.speed.overlap")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="profiles, or models, whose name contains this")
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    arguments = parser.parse_args()
    profiles = [name for name in PROFILES if arguments.only in name]
    cases = [name for name in CASES if arguments.only in name]
    if not profiles and not cases:
        parser.error(f"nothing has {arguments.only!r} in its name, there are {', '.join([*PROFILES, *CASES])}")
    if arguments.ranks < 2 or arguments.ranks % 2:
        parser.error(f"--ranks {arguments.ranks}: guidance is split over two halves of the ranks; use 2 or 4")
    options = {"rounds": arguments.rounds, "profiles": profiles or list(PROFILES), "cases": cases or list(CASES)}
    others = busy_share()
    print(f"{os.cpu_count()} cores, {others:.0%} busy with something else{': NOT QUIET' if others > 0.05 else ''}")
    with Link(arguments.ranks) as link, tempfile.TemporaryDirectory(prefix="overlap-") as folder:
        file = Path(folder, "found.json")
        link.run("tests.benchmarks.speed.overlap_ranks", link.name, json.dumps(options), str(file), seconds=SECONDS)
        found = json.loads(file.read_text())
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    for name, case in found.items():
        print_case(name, case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
