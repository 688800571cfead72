"""Remarks about a plan: why auto chose it, why another one runs, what it is good for.

The sentences are in `locales/*/main.json` under plan.remarks, so that the editor can show them in its own language.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..parallel_backend.plan import ParallelPlan

LOCALES = Path(__file__).parent.parent / "locales"
TEXTS: dict[str, str] = json.loads((LOCALES / "en" / "main.json").read_text("utf-8"))["paralleldit"]["plan"]["remarks"]


# The keys of sentences that say that a plan is not what was asked for, or leaves devices without work.
WARNINGS = frozenset(
    (
        *("no_group", "second_group", "left_out", "hidden_gpus", "batch_only", "idle_ranks", "class_changed"),
        *("no_guidance", "no_guidance_alone", "no_batch", "no_batch_alone", "uneven", "one_device", "few_cores"),
        *("lossy_patches", "lossy_exchange_dtype", "lossy_attention", "same_image", "exact_image"),
        *("use_auto", "cpu_kernel", "runs_whole", "model_runs_whole", "whole_does_not_fit"),
    )
)


class Remark(NamedTuple):
    """A sentence. key: its key in TEXTS. values: what fills its placeholders."""

    key: str
    values: dict[str, int | str]

    @property
    def text(self) -> str:
        return TEXTS[self.key].format(**self.values)


class ResolvedPlan(NamedTuple):
    """The plan that runs. note: why it differs, or may differ, from the requested plan. tried: which of how many plans
    this is, while auto tries plans; else None."""

    plan: ParallelPlan
    note: tuple[Remark, ...] = ()
    tried: tuple[int, int] | None = None


def remark(key: str, **values: int | str) -> Remark:
    return Remark(key, values)


def format_seconds(count: float) -> str:
    """Formats a time as the editor's panel does: "3 ms", "0.42 s", "12.3 s", "2 min 5 s"."""
    if count < 0.0995:
        return f"{count * 1000:.0f} ms"
    rounded = round(count, 2 if count < 10 else 1)
    if rounded < 60:
        return f"{rounded:g} s"
    minutes, seconds = divmod(round(count), 60)
    return f"{minutes} min {seconds} s"


def join_remarks(remarks: Iterable[Remark]) -> str:
    """Joins the sentences to one text."""
    return " ".join(each.text for each in remarks)


def remarks_to_json(remarks: Iterable[Remark]) -> list[dict[str, Any]]:
    """Returns the sentences for a page, which shows them in its own language."""
    return [
        {"key": each.key, "values": each.values, "text": each.text, "is_warning": each.key in WARNINGS}
        for each in remarks
    ]


def explain_one_rank(plan: ParallelPlan, most: int, on_gpus: bool) -> tuple[Remark, ...]:
    """Says why one rank runs instead of this plan, what the image will be, and what to do. most: available ranks."""
    asked, ranks = str(plan), plan.world_size
    machine = remark("one_device", asked=asked, ranks=ranks)
    if not on_gpus:
        machine = remark("few_cores", asked=asked, ranks=ranks, most=most)
    exchanges = {"patches", "exchange_dtype"}  # one rank exchanges nothing
    is_exact = bool(plan.lossy_fields) and exchanges.issuperset(plan.lossy_fields)
    image = remark("exact_image" if is_exact else "same_image")
    return machine, image, remark("use_auto")
