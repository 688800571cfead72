"""`files.placed_rank COMFYUI FILE SHARE`:
runs a tiny Flux on ranks whose card has not the memory for it, and saves what of it was there, and what came out.

The card is the CPU, of which is told that it is a device with so many bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights import placement
from parallel_backend.weights.placement import AllRanks, describe_weights, place_model
from tests.support.ranks.files.tiny_flux import calls, differences
from worker.comfyui.model import import_comfyui
from worker.comfyui.source import HostSource
from worker.rank.job import describe_model
from worker.rank.memory.device_memory import DeviceMemory
from worker.rank.memory.out_of_memory import explain_lack
from worker.rank.model.host_model import HostModel
from worker.wire.operations import CALL

CPU = torch.device("cpu")
SMALL, LARGE = (16, 4, 4), (16, 4, 16)
# Weights whose modules a card with half the memory, and one with all of it, keep elsewhere and here.
ADAPTED = ("single_blocks.0.linear1.weight", "double_blocks.0.img_attn.qkv.weight", "img_in.weight")


@contextlib.contextmanager
def card(free: float) -> Iterator[list[HostModel]]:
    """While entered, the CPU counts as a device with so many bytes for the models in the list and forwards."""
    import comfy.model_management as management

    models: list[HostModel] = []

    def left(_: torch.device) -> int:
        return int(free) - sum(model.resident_bytes for model in models)

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (placement, "is_accelerator", lambda _: True),
            (placement, "available_device_bytes", left),
            (management, "minimum_inference_memory", lambda: 0),
            (management, "extra_reserved_memory", lambda: 0),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield models


class CheckedRanks(AllRanks):
    """checks: how often it has been asked whether to go on, and how much has been read could be told."""

    checks = 0

    def check(self) -> None:
        self.checks += 1


def error(given: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest number; 0 for the same bits."""
    pairs = zip(given, right, strict=True)
    found = [((a - b).abs().max() / b.abs().max()).nan_to_num(torch.inf).item() for a, b in pairs]
    return max(found, default=0.0)


def adapt(model: HostModel) -> None:
    model.patch(*differences(model, ADAPTED))


def on_ranks(comfyui: str, file: str, share: float) -> dict[str, Any]:
    """share: of the weights, that the card has beside what the smaller call takes."""
    world = dist.get_world_size()
    source = HostSource(comfyui, ("--cpu", "--use-pytorch-cross-attention"), file, "Flux", "float32", "float32")
    import_comfyui(source)
    direct = CheckedRanks(CPU)

    def load(**degrees: int) -> HostModel:
        plan = ParallelPlan(**degrees or {"ulysses": world})
        model = HostModel.build(source, build_mesh(plan, CPU))
        place_model(direct, model)
        return model

    def call(model: HostModel, size: tuple[int, ...] = SMALL) -> list[torch.Tensor]:
        asked = calls(latents=size)
        if (working := model.estimate_working_of_calls(asked)) > model.working_bytes:
            place_model(direct, model, working)
        return model.call(asked) or []

    def change(action: Callable[[], None]) -> None:
        """Each rank writes its part of weights that all of them read, once all have written. None reads them still."""
        direct.all_or_none(lambda: None)
        direct.all_or_none(action)

    whole = load()
    checks, blocks = direct.checks, len(whole.fetched.blocks)
    right = {size: call(whole, size) for size in (SMALL, LARGE)}
    total, needed = whole.patcher.model_size(), whole.patcher.memory_required([1, *SMALL]) / world
    adapt(whole)
    adapted = call(whole)
    whole_size = whole.resident_bytes
    del whole
    found: dict[str, Any] = {"total": total, "whole": whole_size, "checks": checks, "blocks": blocks}
    with card(share * total + needed) as models:
        models.append(model := load())
        found["loaded"] = model.resident_bytes
        found["equal"] = error(call(model), right[SMALL])
        found["resident"] = model.resident_bytes
        found["weights"] = describe_weights(direct, model)
        change(lambda: adapt(model))
        found["adapted"] = error(call(model), adapted)
        found["changed"] = error(adapted, right[SMALL]) > 0
        found["resident with an adapter"] = model.resident_bytes
        change(lambda: model.patch({}, {}))
        found["as before"] = error(call(model), right[SMALL])
        found["equal when larger"] = error(call(model, LARGE), right[LARGE])
        found["resident when larger"] = model.resident_bytes
        found["and smaller again"] = error(call(model), right[SMALL])
        asked = describe_model(CALL, {}, torch.Size((1, *LARGE)), model)
        room = DeviceMemory(4 * total, model.resident_bytes, total)
        found["out of memory"] = str(explain_lack(0, CALL, 2 * total, room, room, **asked))
    if world > 1:
        stage = load(pipefusion=world, patches=1)
        found["stage"] = stage.resident_bytes
    return found
