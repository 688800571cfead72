"""`torchrun -m tests.support.ranks.files.placed_rank COMFYUI FILE OUT`:
runs a tiny Flux on ranks whose card has not the memory for it, and saves what of it was there, and what came out.

The card is the CPU, which ComfyUI is told is a device with so many bytes.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from tests.support.ranks.leaving import leave
from worker.comfyui.model import import_comfyui
from worker.comfyui.patches import packed
from worker.comfyui.source import HostSource
from worker.rank.host_model import HostModel
from worker.rank.memory.room import Room
from worker.rank.memory.shortage import Shortage, plan_of
from worker.wire.operations import CALL

CPU = torch.device("cpu")
SMALL, LARGE = (16, 4, 4), (16, 4, 6)
TEXT = (7, 3584)
# Weights whose modules a card with half the memory, and one with all of it, keep elsewhere and here.
ADAPTED = ("single_blocks.0.linear1.weight", "double_blocks.0.img_attn.qkv.weight", "img_in.weight")


@contextlib.contextmanager
def card(free: float) -> Iterator[list[HostModel]]:
    """While entered, ComfyUI takes the CPU for a device with so many bytes for the models in the list and forwards."""
    import comfy.model_management as management

    models: list[HostModel] = []

    def left(*_: Any) -> float:
        return free - sum(model.patcher.loaded_size() for model in models)

    with contextlib.ExitStack() as stack:
        for name, value in (
            ("is_device_cpu", lambda _: False),
            ("vram_state", management.VRAMState.NORMAL_VRAM),
            ("lowvram_available", True),
            ("minimum_inference_memory", lambda: 0),
            ("MIN_WEIGHT_MEMORY_RATIO", 0.0),
            ("extra_reserved_memory", lambda: 0),
            ("get_free_memory", left),
        ):
            stack.enter_context(patch.object(management, name, value))
        yield models


def call(model: HostModel, size: tuple[int, ...] = SMALL) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    latents, text = (torch.randn(1, *shape, generator=generator) for shape in (size, TEXT))
    kwargs = {"y": None, "guidance": None, "transformer_options": {}}
    return model.call([Call((latents, torch.tensor([0.5]), text), kwargs)]) or []


def equal(given: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(given) == len(right) and all(map(torch.equal, given, right))


def adapt(model: HostModel) -> None:
    generator = torch.Generator().manual_seed(1)
    patches = {}
    for name in ADAPTED:
        difference = 0.1 * torch.randn(model.module.model.get_parameter(name).shape, generator=generator)
        patches[f"diffusion_model.{name}"] = [(1.0, (difference,), 1.0, None, None)]
    model.patch(*packed(patches))


def main(comfyui: str, file: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    source = HostSource(comfyui, ("--cpu", "--use-pytorch-cross-attention"), file, "Flux", "float32", "float32")
    import_comfyui(source)

    def load(**plan: int) -> HostModel:
        return HostModel.load(source, build_mesh(ParallelPlan(**plan or {"ulysses": world}), CPU))

    whole = load()
    right = {size: call(whole, size) for size in (SMALL, LARGE)}
    total, needed = whole.patcher.model_size(), whole.patcher.memory_required([1, *SMALL]) / world
    adapt(whole)
    adapted = call(whole)
    whole_size = whole.patcher.loaded_size()
    del whole
    found: dict[str, Any] = {"total": total, "whole": whole_size}
    with card(0.6 * total + needed) as models:
        models.append(model := load())
        found["loaded"] = model.patcher.loaded_size()
        found["equal"] = equal(call(model), right[SMALL])
        found["resident"] = model.patcher.loaded_size()
        adapt(model)
        found["adapted"] = equal(call(model), adapted)
        found["changed"] = not equal(adapted, right[SMALL])
        found["resident with an adapter"] = model.patcher.loaded_size()
        model.patch([], {})
        found["as before"] = equal(call(model), right[SMALL])
        found["equal when larger"] = equal(call(model, LARGE), right[LARGE])
        found["resident when larger"] = model.patcher.loaded_size()
        found["and smaller again"] = equal(call(model), right[SMALL])
        asked = plan_of(CALL, {}, torch.Size((1, *LARGE)), model)
        room = Room(4 * total, model.resident_bytes, total)
        found["out of memory"] = str(Shortage(0, CALL, 2 * total, room, room, **asked).explanation)
    if world > 1:
        stage = load(pipefusion=world, patches=1)
        found["stage"] = stage.patcher.loaded_size()
    Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
