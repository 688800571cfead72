"""What exchange_dtype=int4 does to a whole sampling: to the demo model's pictures, and to families' latents.

python -m tests.benchmarks.exchange.lossy [--model demo/shapes-dit] [--families flux-dev wan-t2v]

On two ranks. The demo model is trained: every class once, 20 steps of FlowMatchEuler, guidance 3,
read by the shape checker. Families are tiny, with random weights: 5 steps, guidance 3.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from parallel_backend.plan import INT4
from tests.benchmarks.pipefusion_demo import GUIDANCE, MODEL, STEPS, Request, psnr, relative_error
from tests.engine.sampling import test_pipefusion as pipefusion
from tests.support.cases.families import FAMILIES
from tests.support.ranks.pool import RankPool

Plan = dict[str, Any]
PLANS: list[Plan] = [{"ulysses": 2, "exchange_dtype": INT4}]
FAMILIES_SHOWN = ("flux-dev", "wan-t2v")
LEAST_RIGHT = 0.95


def plan_name(plan: dict[str, int]) -> str:
    return " × ".join(f"{axis} {degree}" for axis, degree in plan.items()) or "one rank"


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def head(*cells: str) -> str:
    return row(*cells) + "\n" + row("---", *["---:"] * (len(cells) - 1))


def print_demo(folder: Path) -> float:
    """Prints how the demo model's pictures differ; returns the least share that the checker finds right."""
    request = Request.of(folder)
    exact = request.serial()
    drawn = request.parallel({plan_name(plan): plan for plan in PLANS})
    count = len(request.names)
    print(f"demo model, {STEPS} steps, guidance {GUIDANCE:g}, {count} pictures, fp32\n")
    print(head("exchange", "right", "PSNR to exact, dB", "worst picture, dB", "relative error"))
    shares = []
    for name, images in drawn.items():
        shares.append(1 - len(request.misses(images)) / count)
        worst = min(psnr(*pair) for pair in zip(images, exact, strict=True))
        error = relative_error(images, exact)
        print(row(name, f"{shares[-1]:.1%}", f"{psnr(images, exact):.1f}", f"{worst:.1f}", f"{error:.1e}"))
    return min(shares)


def print_families(names: list[str]) -> None:
    """Prints the relative errors of families' latents against exact sampling in one process."""
    cases = [
        {**pipefusion.case(name, "flow", 1, 1), "name": f"{name} {plan_name(plan)}", "plan": plan, "world": 2}
        for name in names
        for plan in PLANS
    ]
    with tempfile.TemporaryDirectory(prefix="exchange-") as root, RankPool(Path(root)) as ranks:
        results = pipefusion.run_cases(cases, ranks, Path(root))
    print(f"\nfamilies, {pipefusion.STEPS} steps, guidance 3, fp32: relative error\n")
    print(head("family", *map(plan_name, PLANS)))
    for name in names:
        wanted = pipefusion.expected(name, "flow", 1, None)
        errors = [relative_error(results[f"{name} {plan_name(plan)}"], wanted) for plan in PLANS]
        print(row(name, *(f"{error:.1e}" for error in errors)))


def main() -> int:
    """Prints both tables; returns 1 where a lossy exchange draws too few pictures right."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.exchange.lossy")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES_SHOWN), choices=list(FAMILIES))
    arguments = parser.parse_args()
    least = print_demo(arguments.model)
    if arguments.families:
        print_families(arguments.families)
    return int(least < LEAST_RIGHT)


if __name__ == "__main__":
    sys.exit(main())
