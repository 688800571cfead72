"""How much faster a step is on 2 and 4 ranks than on one, by method, on links of real machines.

python -m tests.benchmarks.links [--ranks 2 4] [--rounds 3] [--only NAME] [--quick] [--json FILE]

Models are Flux.1, Wan 2.1 14B and Z-Image at batch 1, PixArt-Sigma with guidance, and SDXL with and without, each with
a part of the real one's width and tokens and, but for SDXL, with fewer blocks (tests/benchmarks/speed/link_cases.py).
Weights are random. SDXL is ComfyUI's class, and COMFYUI_PATH has to name it; the others are diffusers'. Ranks have a
thread each and are joined by a link (tests/support/links/link.py) that is as much slower than the real one as they
compute slower than its card (profiles.py has the rule). So a ratio here is that of the real machine as far as the rule
goes.

Ranks are throttled (throttle.py) so far that half of the cores are left to what carries their messages, which a card
leaves to the host: else a rank that waits would make another one faster, and what overlaps would slow both. One rank's
time, which all ratios go by and from which the link's rate follows, is that of a rank which runs the whole step while
all the others run theirs.

One run of the ranks a number of ranks, one model after the other. Each round measures on every link one rank, then
every method, in an order that changes by round; figures are medians over the rounds of ratios within one. Before that,
each method's result is compared with one rank's, to 1e-4.

ulysses, ring, cfg: ours, as a plan has them; a UNet shares its rows by ulysses and ring. cfg 2 alone splits cond and
uncond, and two of four ranks are idle then. pipefusion: a step for a stock sampler, by so many patches; lossy. It is
compared on deep models, with a fifth of the real one's blocks: it sends once for each stage, and other methods once for
each block. int4: Ulysses with that exchange_dtype, which is lossy, and which a CPU pays for; its link is half as fast,
since a byte is half of what a card sends in its place, and a quarter of what a CPU rank does. no overlap: ours with
Ulysses over all ranks in one part, so that nothing is computed while it travels. diffusers: its own context parallel
(Ulysses) of the same model; its ring needs attention that tells the log-sum-exp, which it has for GPUs alone. MB that a
rank sends: counted in a step, of the rank that sends most. gloo's own copying takes a rank's CPU time and shows from
some 100 MB/s on: NVLink's figures are lower than the real ones.
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
from pathlib import Path

from tests.benchmarks.speed.link_cases import CASES, ONE, methods
from tests.benchmarks.speed.throttle import busy_share
from tests.support.links.link import Link
from tests.support.links.profiles import PROFILES

SECONDS = 3600.0
QUICK = ("PCIe 4.0 x16", "10 Gbit/s Ethernet")


def ratios(seconds: dict[str, list[float]], name: str) -> list[float]:
    """A method's time by one rank's, by round."""
    return [this / one for this, one in zip(seconds[name], seconds[ONE.name], strict=True)]


def print_case(name: str, ranks: int, found: dict) -> None:
    """found: as the ranks wrote it."""
    asked = [method.name for method in methods(CASES[name], ranks) if method is not ONE]
    one = statistics.median(second for runs in found["seconds"].values() for second in runs[ONE.name])
    print(f"\n{name}, {ranks} ranks: {found['flops'] / 1e9:.0f} GFLOP/s a rank, one rank's step {one:.2f} s")
    widths = [max(9, len(title) + 2) for title in asked]
    print(f"{'times faster than one rank':27}{'MB/s':>6}" + "".join(map(str.rjust, asked, widths)))
    sent = found["sent"]
    cells = [f"{sent[each] / 1e6:.1f}" if each in sent else "–" for each in asked]
    print(f"{'MB that a rank sends a step':33}" + "".join(map(str.rjust, cells, widths)))
    for profile, seconds in found["seconds"].items():
        faster = [1 / statistics.median(ratios(seconds, each)) if each in seconds else None for each in asked]
        cells = ["–" if ratio is None else f"{ratio:.2f}" for ratio in faster]
        rate = statistics.median(found["rates"][profile]) / 1e6
        print(f"{profile:27}{rate:6.1f}" + "".join(map(str.rjust, cells, widths)))
    for method, reason in found["refused"].items():
        print(f"  {method}: refused, {reason}")


def measure(cases: list[str], ranks: int, rounds: int, profiles: list[str]) -> Iterator[tuple[str, dict | None]]:
    """Each case and what the ranks found of it, None where they failed; others go on then."""
    left = list(cases)
    with Link(ranks) as link, tempfile.TemporaryDirectory(prefix="links-") as folder:
        while left:
            file = Path(folder, f"{len(left)}.json")
            options = json.dumps({"cases": left, "rounds": rounds, "profiles": profiles})
            try:
                link.run("tests.benchmarks.speed.link_ranks", link.name, options, str(file), seconds=SECONDS)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                print(error, file=sys.stderr, flush=True)
            found = json.loads(file.read_text()) if file.exists() else {}
            yield from found.items()
            left = left[len(found) :]
            if left:
                yield left.pop(0), None


def main() -> int:
    """Prints a table a model and number of ranks; returns how many could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.links")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], choices=(2, 4))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="profiles, or models, whose name is this or contains it")
    parser.add_argument("--quick", action="store_true", help=f"{' and '.join(QUICK)} alone")
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    arguments = parser.parse_args()
    profiles = [name for name in (QUICK if arguments.quick else PROFILES) if arguments.only in name]
    cases = [arguments.only] if arguments.only in CASES else [name for name in CASES if arguments.only in name]
    if not profiles and not cases:
        parser.error(f"nothing has {arguments.only!r} in its name, there are {', '.join([*PROFILES, *CASES])}")
    profiles = profiles or list(QUICK if arguments.quick else PROFILES)
    others = busy_share()
    print(f"{os.cpu_count()} cores, {others:.0%} busy with something else{': NOT QUIET' if others > 0.05 else ''}")
    found: dict[str, dict[str, dict]] = {}
    failures = 0
    for ranks in arguments.ranks:
        for case, result in measure(cases or list(CASES), ranks, arguments.rounds, profiles):
            if result is None:
                failures += 1
                print(f"\n{case}, {ranks} ranks: FAILED", flush=True)
                continue
            found.setdefault(case, {})[str(ranks)] = result
            print_case(case, ranks, result)
            sys.stdout.flush()
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    return failures


if __name__ == "__main__":
    sys.exit(main())
