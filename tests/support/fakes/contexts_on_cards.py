"""`python -m tests.support.fakes.contexts_on_cards COMFYUI FOLDER`:
where the nodes expect the weights of a model on cards of 8 GB, and where the ranks put them.

The cards are pretended, as torch's calls tell of them. As the ranks start, ComfyUI may have a model on its card.
Measurements are kept in FOLDER. Prints JSON: by machine, the fetched blocks that are expected before the first start,
as the ranks run, and once ComfyUI has been started again; and those that the ranks choose.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from parallel_backend.groups.communicators import count_communicator_bytes
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights import placement
from parallel_backend.weights.sizes import WeightSizes
from tests.support.host.mounted import mount
from worker.rank.model.host_model import HostModel
from worker.rank.state import RankState

GIB = 1 << 30
TOTAL, ENCODER, RAM = 8 * GIB, 3 * GIB, 64 * GIB
OWN, RANK = int(0.5e9), int(0.6e9)
SIZES = (GIB, (GIB // 8,) * 40)  # 6 GiB in all
# The bytes of ComfyUI's context and of a rank's, the number of cards, and ComfyUI's models as the ranks start.
MACHINES = {
    "1.2 GB in all": (OWN, RANK, 1, 0),
    "1.2 GB in all, two cards": (OWN, RANK, 2, ENCODER),
    "small ones": (int(0.1e9), int(0.1e9), 1, 0),
    "small ones, beside a model": (int(0.1e9), int(0.1e9), 1, ENCODER),
    "another program on the first card": (int(1.5e9), RANK, 2, ENCODER),
}


class Cards:
    """What torch says of the cards. used: bytes of each that are not the asking process's torch's."""

    def __init__(self, name: str, own: int, count: int) -> None:
        self.used, self.count = [own] + [0] * (count - 1), count
        self.module: Any = torch.cuda
        self.module.device_count = lambda: count
        said = SimpleNamespace(name=name, total_memory=TOTAL, major=8, minor=9)
        self.module.get_device_properties = lambda _device: said
        self.module.mem_get_info = lambda device: (TOTAL - self.used[torch.device(device).index or 0], TOTAL)
        self.module.memory_reserved = self.module.memory_allocated = lambda _device: 0

    def choose(self, plan: ParallelPlan) -> int:
        """The blocks that ranks with these cards decide to fetch."""
        models: list[Any] = []
        for index in range(self.count):
            device = torch.device("cuda", index)
            mesh = SimpleNamespace(device=device)
            models.append(SimpleNamespace(mesh=mesh, sizes=WeightSizes(*SIZES), resident_bytes=0, working_bytes=0))
            models[-1].limit_weights = lambda free, model=models[-1]: HostModel.limit_weights(model, free)
        own = lambda numbers, _group: [numbers]  # noqa: E731
        ranks: Any = SimpleNamespace(control_group=None)
        with patch.object(placement, "available_bytes", lambda: RAM), patch.object(placement, "gather_numbers", own):
            rooms = [placement.measure_room(ranks, model, plan) for model in models]
        of_all = lambda *_: [(room.device, room.host) for room in rooms]  # noqa: E731
        links = patch.object(placement.WeightPlacement, "measure_links", lambda *_: placement.Links())
        with links, patch.object(placement, "gather_numbers", of_all):
            return placement.WeightPlacement()._decide(ranks, models[0], plan, None).weight_blocks


def plan_and_place(name: str, own: int, context: int, count: int, models: int) -> dict[str, int]:
    room, group, measured = (
        importlib.import_module(f"pack.{name}")
        for name in ("nodes.workers.room", "nodes.workers.group", "worker.host.measured")
    )
    sizes = importlib.import_module("pack.parallel_backend.weights.sizes").WeightSizes(*SIZES)
    plan = importlib.import_module("pack.parallel_backend.plan").ParallelPlan(ulysses=count)
    cards = Cards(name, own, count)

    def begin() -> None:
        room.measure_own_context.cache_clear()
        measured.measured_file.cache_clear()
        group._groups.clear()
        room.measure_own_context()  # as the pack is loaded

    def expect() -> int:
        return room.expect_weights(plan, sizes, room.room_for_weights(plan)).weight_blocks

    begin()
    found = {"before": expect()}
    cards.used[0] += models
    cards.used = [used + context for used in cards.used]
    started = [RankState(torch.device("cuda", index)).outside for index in range(count)]
    devices = [{"index": index, "name": "", "outside": each} for index, each in enumerate(started)]
    group._groups[1] = SimpleNamespace(session=SimpleNamespace(last_status={"devices": devices}))
    found["started"] = expect()
    cards.used[0] = own
    begin()
    found["again"] = expect()
    communicators = count_communicator_bytes(ParallelPlan(ulysses=count))
    # ComfyUI's kernels come as it computes; a context that has another program in it stays as large.
    cards.used = [max(own, context) + context + communicators] + [context + communicators] * (count - 1)
    return {**found, "chosen": cards.choose(ParallelPlan(ulysses=count))}


def main(comfyui: str, folder: str) -> None:
    os.environ["PARALLELDIT_MEASURED"] = folder
    mount(comfyui)
    management = importlib.import_module("comfy.model_management")
    management.cpu_state = management.CPUState.GPU
    management.get_torch_device = lambda: torch.device("cuda", 0)
    management.get_free_memory = lambda _device: RAM
    torch.distributed.is_backend_available = lambda _backend: True
    print(json.dumps({name: plan_and_place(name, *machine) for name, machine in MACHINES.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
