"""How exact the engine is: every family under every plan, and PipeFusion against its oracle and exact sampling.

python -m tests.benchmarks.exactness [--families dit flux-dev …] [--no-families] [--no-pipefusion]

The cases, models and references are the tests' own; here their errors are printed, as Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import torch

from tests.engine import test_families as families
from tests.engine.sampling import test_pipefusion as pipefusion
from tests.support.cases.families import FAMILIES, UNEVEN
from tests.support.ranks.pool import RankPool

NO_CASE = "–"


def plan_name(plan: dict[str, int]) -> str:
    return " × ".join(f"{axis} {degree}" for axis, degree in plan.items()) or "one rank"


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def head(*cells: str) -> str:
    return row(*cells) + "\n" + row("---", *["---:"] * (len(cells) - 1))


def distinct(plans: list[dict[str, int]]) -> list[dict[str, int]]:
    return [plan for index, plan in enumerate(plans) if plan not in plans[:index]]


def psnr(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Peak signal to noise in dB, the peak being the range of `wanted`."""
    error = (got - wanted).double().square().mean().item()
    return 10 * math.log10(float(wanted.max() - wanted.min()) ** 2 / error) if error else math.inf


def print_families(names: list[str]) -> float:
    """Prints relative errors against one process on plain diffusers, the worst of the shapes; returns the worst."""
    wanted = [(*case.values, "fp32") for case in families.CASES if case.values[0] in names]
    wanted += [(name, plan, UNEVEN, "bf16") for name in names for plan in ({}, *families.BF16_PLANS)]
    with tempfile.TemporaryDirectory(prefix="exactness-") as root, RankPool(Path(root)) as ranks:
        results = families.run_cases(wanted, ranks, Path(root))
    exact = {(name, shape): families.plain_diffusers(name, shape) for name in names for shape in FAMILIES[name].shapes}

    def error(name: str, plan: dict[str, int], shape: str) -> float:
        return families.relative_error(results[families.case_name(name, plan, shape)], exact[name, shape])

    plans = distinct([plan for _, plan, _, dtype in wanted if dtype == "fp32"])
    print(f"\nfp32: relative error against plain diffusers in one process; tolerance {families.TOLERANCE:g}\n")
    print(head("family", *map(plan_name, plans)))
    worst = 0.0
    for name in names:
        cells = []
        for plan in plans:
            errors = [
                error(name, plan, shape) for shape in FAMILIES[name].shapes if (name, plan, shape, "fp32") in wanted
            ]
            worst = max([worst, *errors])
            cells.append(f"{max(errors):.1e}" if errors else NO_CASE)
        print(row(name, *cells))

    plans = distinct([plan for _, plan, _, dtype in wanted if dtype == "bf16" and plan])
    print(
        f"\nbf16: one rank's distance from fp32; and each plan's distance from one rank in bf16 (tolerance "
        f"{families.BF16_TOLERANCE:g}), and from fp32\n"
    )
    print(head("family", "one rank to fp32", *[f"{plan_name(plan)} {to}" for plan in plans for to in ("", "to fp32")]))
    for name in names:
        one = results[families.case_name(name, {}, UNEVEN, "bf16")]
        cells = [f"{families.relative_error(one, exact[name, UNEVEN]):.1e}"]
        for plan in plans:
            got = results.get(families.case_name(name, plan, UNEVEN, "bf16"))
            for reference in (one, exact[name, UNEVEN]):
                cells.append(NO_CASE if got is None else f"{families.relative_error(got, reference):.1e}")
        print(row(name, *cells))
    return worst


def print_pipefusion(names: list[str]) -> float:
    """Prints the errors against the oracle, and the oracle's own distance from exact sampling; returns the worst."""
    cases = [case for case in pipefusion.CASES if case["family"] in names]
    with tempfile.TemporaryDirectory(prefix="exactness-") as root, RankPool(Path(root)) as ranks:
        results = pipefusion.run_cases(cases, ranks, Path(root))
    axes = ("patches", "sync_steps", "pipefusion")
    hybrids = [{axis: n for axis, n in case["plan"].items() if axis not in axes} for case in cases]
    columns = distinct(hybrids)
    rows: dict[tuple, dict[str, float]] = {}
    for case, hybrid in zip(cases, hybrids, strict=True):
        plan = case["plan"]
        settings = (case["family"], case["scheduler"], plan["patches"], plan["sync_steps"])
        error = pipefusion.relative_error(results[case["name"]], pipefusion.expected(*settings))
        rows.setdefault((*settings, plan["pipefusion"]), {})[json.dumps(hybrid)] = error
    print(
        f"\nPipeFusion, fp32, {pipefusion.STEPS} steps with guidance: relative error of the parallel run against the "
        f"serial oracle (tolerance {pipefusion.TOLERANCE:g}); and of the oracle against exact sampling\n"
    )
    print(
        head(
            "family", "scheduler", "patches", "sync steps", "stages",
            *[plan_name(hybrid) if hybrid else "alone" for hybrid in columns], "oracle to exact", "PSNR, dB",
        )
    )  # fmt: skip
    for key, errors in sorted(rows.items()):
        family, scheduler, patches, sync_steps, _stages = key
        oracle, exact = (pipefusion.expected(family, scheduler, *s) for s in ((patches, sync_steps), (1, None)))
        cells = [f"{errors[name]:.1e}" if (name := json.dumps(hybrid)) in errors else NO_CASE for hybrid in columns]
        distance = pipefusion.relative_error(oracle, exact)
        print(row(*key, *cells, f"{distance:.1e}", f"{psnr(oracle, exact):.1f}"))
    return max(error for errors in rows.values() for error in errors.values())


def main() -> int:
    """Prints the tables; returns 1 where a tolerance is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.exactness")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--no-families", action="store_true", help="leave the table of families and plans out")
    parser.add_argument("--no-pipefusion", action="store_true", help="leave PipeFusion's table out")
    arguments = parser.parse_args()
    within = True
    if not arguments.no_families:
        within &= print_families(arguments.families) <= families.TOLERANCE
    if not arguments.no_pipefusion:
        within &= print_pipefusion(arguments.families) <= pipefusion.TOLERANCE
    print(f"\ntolerances in fp32: {'kept' if within else 'EXCEEDED'}")
    return int(not within)


if __name__ == "__main__":
    sys.exit(main())
