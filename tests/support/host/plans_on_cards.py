"""`host.plans_on_cards COMFYUI FOLDER`:
what is said of plans, for models of published sizes on cards that this machine has not.

Cards, and what ComfyUI finds in the files, are pretended, as in `machine_of_cards` and `templates.describe`. Reads
questions as JSON from its input: [cards' GB, what the group has told of weights, the question], and behind these, if
the cards' link has been measured, its bytes per second, else 0, the free RAM in GB, and the GB of the contexts of
ComfyUI and of each rank. Prints the answers.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from parallel_backend.costs.machine import LINKS, Machine
from tests.support.host.mounted import mount
from tests.support.templates.describe import contents_of
from tests.support.templates.model_files import PUBLISHED, model_file, published

GB = 1 << 30
MODELS = {
    "flux": published("flux1-dev.safetensors"),
    "sdxl": model_file("sd_xl_base_1.0.safetensors"),
    "ace-step": model_file("ace_step_v1_3.5b.safetensors"),
    **{name: published(name) for name in PUBLISHED},
}


def pretend(route: Any, sizes: list[int], ram: int, own: float) -> None:
    """Cards of these sizes, in GB, on which ComfyUI computes; none: it computes on the CPU. ram: GB, all of it free.
    own: GB of ComfyUI's context."""
    cards = [SimpleNamespace(name=f"{size} GB", total_memory=size * GB, major=8, minor=9) for size in sizes]
    module: Any = torch.get_device_module("cuda")
    module.device_count = lambda: len(cards)
    module.mem_get_info = lambda _device: (int((sizes[0] - own) * GB), sizes[0] * GB)
    module.memory_reserved = lambda _device: 0
    room: Any = sys.modules["pack.nodes.workers.room"]
    room.measure_own_context.cache_clear()
    room.available_ram_bytes = lambda: ram * GB
    module.get_device_properties = lambda which: cards[which if isinstance(which, int) else 0]  # ComfyUI asks by device
    management = importlib.import_module("comfy.model_management")
    state = management.CPUState.GPU if cards else management.CPUState.CPU
    if state != management.cpu_state:
        route.read_headers.cache_clear()  # by which dtype ComfyUI chooses for the device
    management.cpu_state, management.get_torch_device = state, lambda: torch.device("cuda" if cards else "cpu")
    management.pytorch_attention_flash_attention = lambda: bool(cards)
    management.get_free_memory = lambda _device: ram * GB
    management.get_total_memory = lambda device: (ram if device.type == "cpu" else sizes[0]) * GB
    management.supports_fp8_compute = lambda _device=None: bool(cards)  # of a card such as these


def measured(find_machine: Callable[[str], Machine], rate: float) -> Callable[[str], Machine]:
    """The machine's figures with a link of this rate."""

    def find(dtype: str) -> Machine:
        machine = find_machine(dtype)
        links = {name: getattr(machine, name)._replace(rate=rate) for name in LINKS}
        return replace(machine, is_measured=True, **links)

    return find


def answer(
    route: Any,
    contents: dict[str, Any],
    sizes: list[int],
    told: dict[str, Any],
    asked: Any,
    link: float = 0,
    ram: int = 64,
    contexts: tuple[float, float] = (0, 0),
) -> dict[str, Any]:
    own, ranks = contexts
    pretend(route, sizes, ram, own)
    costs = sys.modules["pack.nodes.costs.plans"]
    outside = [int((ranks + (own if index == 0 else 0)) * GB) for index in range(len(sizes))]
    devices = [{"index": index, "outside": each} for index, each in enumerate(outside)]
    group = SimpleNamespace(session=SimpleNamespace(last_status={"devices": devices, "weights": told}))
    groups = sys.modules["pack.nodes.workers.group"]
    (name,) = asked["files"].values()
    with (
        patch("pack.worker.comfyui.model.read_safetensors", lambda *_, **__: contents[name]),
        patch.dict(groups._groups, {1: group}),
        patch("torch.distributed.is_backend_available", lambda _backend: True),
        patch.object(costs, "machine_of", measured(costs.machine_of, link) if link else costs.machine_of),
    ):
        return route.answer(route.read_question(asked))


def main(comfyui: str, folder: str) -> list[Any]:
    mount(comfyui)
    os.environ["PARALLELDIT_MEASURED"] = str(Path(folder) / "measured")
    route = importlib.import_module("pack.nodes.routes.plan")
    questions = json.load(sys.stdin)
    asked = {name for _, _, question, *_ in questions for name in question["files"].values()}
    contents = {name: contents_of(MODELS[name]) for name in sorted(asked & {*MODELS})}
    paths = {name: Path(folder) / f"{name}.safetensors" for name in contents}
    for path in paths.values():
        path.touch()
    route.find_loaded = lambda files: next((paths[name] for name in files.values() if name in paths), None)
    return [answer(route, contents, *question) for question in questions]
