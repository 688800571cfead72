"""Remarks about a plan: why auto chose it, why another one runs, what it is good for.

The sentences are in `locales/*/main.json` under plan.remarks, so that the editor can show them in its own language.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..parallel_backend.plan import LOSSY_ATTENTION, MODEL, OFF, ParallelPlan

LOCALES = Path(__file__).parent.parent / "locales"
TEXTS: dict[str, str] = json.loads((LOCALES / "en" / "main.json").read_text("utf-8"))["paralleldit"]["plan"]["remarks"]


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


class Devices(NamedTuple):
    """The devices of an automatic plan. count: ranks. is_set: whether the settings give the count or the GPUs.

    chosen: ComfyUI's start arguments that hide GPUs from it, and so from the ranks; empty if it sees all. own:
    ComfyUI's own GPU, in words. unlike: the GPUs that are left out because they differ from it. present: how many GPUs
    there are, if the settings can choose among them; several machines have 0.
    """

    count: int
    on_gpus: bool
    is_set: bool
    chosen: str
    own: str = ""
    unlike: tuple[str, ...] = ()
    present: int = 0


def remark(key: str, **values: int | str) -> Remark:
    return Remark(key, values)


def format_bytes(count: float) -> str:
    """Formats bytes as the editor's panel does: "412 MiB", "1.2 GiB"."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def format_seconds(count: float) -> str:
    """Formats a time: "3 ms", "0.42 s", "12.3 s"."""
    return f"{count * 1000:.0f} ms" if count < 0.1 else f"{count:.2f} s" if count < 10 else f"{count:.1f} s"


def join_remarks(remarks: Iterable[Remark]) -> str:
    """Joins the sentences to one text."""
    return " ".join(each.text for each in remarks)


def remarks_to_json(remarks: Iterable[Remark]) -> list[dict[str, Any]]:
    """Returns the sentences for a page, which shows them in its own language."""
    return [{"key": each.key, "values": each.values, "text": each.text} for each in remarks]


def explain_auto(devices: Devices, lacks_file: bool = False) -> list[Remark]:
    """Returns the remarks on an automatic plan while no model is known. The plan depends on the model.

    lacks_file: whether the loader's file is missing; else only a run can tell the file.
    """
    remarks, count = explain_devices(devices), devices.count
    return remarks if count <= 1 else [*remarks, remark("needs_file" if lacks_file else "needs_model", ranks=count)]


def explain_devices(devices: Devices) -> list[Remark]:
    """Says how many ranks an automatic plan has, which GPUs it leaves out, and why."""
    hidden = [remark("hidden_gpus", chosen=devices.chosen)] if devices.on_gpus and devices.chosen else []
    if devices.unlike:
        left_out = ", ".join(devices.unlike)
        hidden.append(remark("left_out", cards=left_out, own=devices.own, present=devices.present))
    if devices.count <= 1:
        return [remark("auto_one"), *hidden]
    on_gpus = "auto_like" if devices.unlike else "auto_gpus"
    key = "auto_set" if devices.is_set else on_gpus if devices.on_gpus else "auto_cpu"
    return [remark(key, devices=devices.count), *hidden]


def explain_one_rank(plan: ParallelPlan, most: int, on_gpus: bool) -> tuple[Remark, ...]:
    """Says why one rank runs instead of this plan, what the image will be, and what to do. most: available ranks."""
    asked, ranks = str(plan), plan.world_size
    machine = remark("one_device", asked=asked, ranks=ranks)
    if not on_gpus:
        machine = remark("few_cores", asked=asked, ranks=ranks, most=most)
    drops_error = plan.patch_count > 1 or plan.exchange_dtype != MODEL  # one rank exchanges nothing
    keeps_error = plan.sparse != OFF or plan.attention in LOSSY_ATTENTION
    image = remark("exact_image" if drops_error and not keeps_error else "same_image")
    return machine, image, remark("use_auto")
