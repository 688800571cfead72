"""The report, one page of Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tests.support.report.machine import fenced, listed
from tests.support.report.results import Results
from tests.support.report.timing import Timing, Variant

GIGABYTE = 1 << 30
# GitHub takes an issue of 65,536 characters.
FAILURES, NAMED, REASONS = 16, 6, 8
ON_CPU = "**On the CPU: shows that the report works, not speed.**"


def page(
    *,
    device: str,
    machine: Sequence[str],
    links: str,
    expected: str,
    results: Results | None,
    tests_said: str,
    timing: Timing | None,
    timing_said: str,
    settings: Sequence[str],
) -> str:
    """expected: what docs/plans.md predicts. results, timing: None where there are none, and `…_said` why."""
    parts = ["# ParallelDiT: GPU report", *([ON_CPU] if device == "cpu" else [])]
    parts += ["## Machine", listed(machine), *([fenced(links)] if links else [])]
    parts += ["## Tests", tests(results) if results else tests_said]
    parts += ["## Failures", failures(results) if results else tests_said]
    parts += ["## Time a step", speed(timing) if timing else timing_said, *([expected] if expected else [])]
    parts += ["## What the ranks' logs say", fenced("\n".join(timing.log_lines)) if timing else timing_said]
    parts += ["## Settings", listed(settings) or "None."]
    return "\n\n".join(parts) + "\n"


def tests(results: Results) -> str:
    counts = results.counts
    said = ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped"))
    lines = [f"{said}.", "", "| what | passed | failed | skipped | largest error |", "|---|---|---|---|---|"]
    for name, group in results.groups.items():
        error = "" if group.error is None else f"{group.error:.0e}"
        kinds = (group.counts[kind] or "" for kind in ("passed", "failed", "skipped"))
        lines.append(f"| {name} | {' | '.join(map(str, kinds))} | {error} |")
    lines += ["", *(f"- skipped, {count}: {reason}" for reason, count in results.reasons.most_common(REASONS))]
    return "\n".join(lines).strip()


def failures(results: Results) -> str:
    """Those that say the same stand together."""
    found = sorted(results.failures.items(), key=lambda each: -len(each[1]))
    parts = []
    for said, names in found[:FAILURES]:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        parts.append(f"{', '.join(f'`{name}`' for name in names[:NAMED])}{more}:\n\n{fenced(said)}")
    if len(found) > FAILURES:
        parts.append(f"{len(found) - FAILURES} other kinds of failure are left out.")
    return "\n\n".join(parts) or "None."


def speed(timing: Timing) -> str:
    size = timing.size
    lines = [
        f"A KSampler (Euler) through ComfyUI's queue: {size.words}, random weights. Medians of "
        f"{size.rounds} rounds; a step is what steps {size.steps[0] + 1} to {size.steps[1]} add to a prompt. "
        f"Difference: of the latents after {size.steps[0]} steps from stock's, relative to their greatest value.",
        "",
        "| | s a step | stock ÷ this | least and most s | difference | plan | waiting for others | GB a rank |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(row(variant, timing.variants[0]) for variant in timing.variants)])


def row(variant: Variant, stock: Variant) -> str:
    ratio = statistics.median(one / other for one, other in zip(stock.seconds, variant.seconds, strict=True))
    cells = [
        variant.name,
        f"{statistics.median(variant.seconds):.4f}",
        f"{ratio:.2f}",
        f"{min(variant.seconds):.4f} to {max(variant.seconds):.4f}",
        "" if variant.error is None else f"{variant.error:.1e}",
        variant.ran,
        "" if variant.communication is None else f"{variant.communication:.0%}",
        ", ".join(f"{size / GIGABYTE:.1f}" for size in variant.memory),
    ]
    return f"| {' | '.join(cells)} |"
