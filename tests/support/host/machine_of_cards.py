"""`host.machine_of_cards COMFYUI`:
what the nodes plan on machines with accelerators that this one has not.

The cards are pretended, below torch's own calls, and so is ComfyUI's choice of one. Returns by machine, how many
ranks an automatic plan has, how many any plan may have, and what is said of an automatic plan; or the error.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tests.support.host.mounted import mount

GB = 1 << 30
BIG = SimpleNamespace(name="RTX 3090", total_memory=24 * GB, major=8, minor=6)
SMALL = SimpleNamespace(name="GTX 1660", total_memory=6 * GB, major=7, minor=5)
ARC = SimpleNamespace(name="Arc B580", total_memory=12 * GB)
# Kind, its cards, and what is set.
MACHINES: dict[str, tuple[str, list[SimpleNamespace], dict[str, str]]] = {
    "three alike": ("cuda", [BIG, BIG, BIG], {}),
    "one other": ("cuda", [BIG, SMALL, BIG], {}),
    "own is another": ("cuda", [SMALL, BIG, BIG], {}),
    "as many as set": ("cuda", [BIG, SMALL, BIG], {"ranks": "3"}),
    "of two machines": ("cuda", [BIG, SMALL, BIG], {"machines": "10.0.0.1:29400,10.0.0.2"}),
    "more set than cards": ("cuda", [BIG, BIG], {"ranks": "1000"}),
    "Intel's": ("xpu", [ARC, ARC], {}),
    "set to the CPU": ("cuda", [BIG, BIG], {"device": "cpu"}),
    "set to what is not there": ("cuda", [BIG, BIG], {"device": "xpu"}),
    "Apple's": ("mps", [], {}),
    "without NCCL": ("cuda", [BIG, BIG], {}),
    "on Windows": ("cuda", [BIG, BIG], {}),
    "of two cards, the ranks with their own Python": ("cuda", [BIG, BIG], {"python": "/another/python"}),
    "both chosen": ("cuda", [BIG, SMALL], {"gpus": "1,0"}),
    "chosen without ComfyUI's own": ("cuda", [BIG, SMALL, BIG], {"gpus": "1,2"}),
    "one chosen": ("cuda", [BIG, SMALL, BIG], {"gpus": "2"}),
    "chosen, and more ranks": ("cuda", [BIG, SMALL, BIG], {"gpus": "0,2", "ranks": "3"}),
    "chosen on the CPU": ("cuda", [BIG, BIG], {"gpus": "0", "device": "cpu"}),
    "chosen on two machines": ("cuda", [BIG, BIG], {"gpus": "0", "machines": "10.0.0.1:29400,10.0.0.2"}),
    "chosen what is not there": ("cuda", [BIG, SMALL], {"gpus": "0,2,7"}),
}


def planned(machine_name: str, kind: str, cards: list[SimpleNamespace], settings: dict[str, str]) -> dict[str, Any]:
    group, route = (importlib.import_module(f"pack.nodes.{name}") for name in ("workers.group", "routes.plan"))
    plans, words = (importlib.import_module(f"pack.nodes.{name}") for name in ("parallel_plan", "plan_words"))
    machine, page = (importlib.import_module(f"pack.nodes.{name}") for name in ("costs.machine", "routes.settings"))
    costs = SimpleNamespace(module=torch.nn.Identity(), order_plans=lambda _work: ([], None))
    for each in ("cuda", "xpu"):
        module: Any = torch.get_device_module(each)
        module.device_count = lambda each=each: len(cards) if each == kind else 0
        module.get_device_properties = lambda index: cards[index]
    lacking = {"without NCCL": "nccl", "of two cards, the ranks with their own Python": "nccl"}.get(machine_name)
    torch.distributed.is_backend_available = lambda backend: backend != lacking
    group.sys = SimpleNamespace(
        platform="win32" if "Windows" in machine_name else sys.platform, executable=sys.executable
    )
    group.comfy.model_management.cpu_state = group.comfy.model_management.CPUState.GPU
    group.comfy.model_management.get_torch_device = lambda: torch.device(kind, 0)
    os.environ |= {f"PARALLELDIT_{name.upper()}": value for name, value in settings.items()}
    group.settings.cache_clear()
    try:
        devices = machine.devices_of_ranks()
        answer = route.answer(route.Question(values={"mode": "auto"}))
        guided = plans.Work(2, has_branches=True)
        noted = plans.choose_plan(guided, costs)
        asked = plans.fit_to_machine(plans.ParallelPlan(ulysses=3)) if group.why_no_group() else None
        cards_shown = page.describe_cards()
        with patch.object(group.comfy.cli_args.args, "cuda_device", "1"):
            hidden = words.join_remarks(plans.explain_devices())
    except group.SettingsError as error:
        return {"error": str(error), "cards": page.describe_cards()}
    finally:
        for name in settings:
            del os.environ[f"PARALLELDIT_{name.upper()}"]
    return {
        "device": answer["device"],
        "auto": group.device_count(),
        "devices": devices,
        "most": group.most_ranks(),
        "remarks": [each["key"] for each in answer["remarks"]],
        "asked": asked and [str(asked.plan), words.join_remarks(asked.note)],
        "said": " ".join(each["text"] for each in answer["note"]),
        "text": " ".join(each["text"] for each in answer["remarks"]),
        "plan": str(noted.plan),
        "cards": cards_shown,
        "offered": [each["values"].get("present") for each in answer["remarks"] if each["key"] == "left_out"],
        "hidden": hidden,
        "note": words.join_remarks(noted.note),
    }


def main(comfyui: str) -> dict[str, Any]:
    mount(comfyui)
    return {name: planned(name, *machine) for name, machine in MACHINES.items()}
