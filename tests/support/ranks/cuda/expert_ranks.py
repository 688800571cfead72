"""`cuda.expert_ranks CASES OUT`:
samples two files in turn, in two prompts, on labelled cards with little memory.

Each rank is ComfyUI's side, too: its `WorkerGroup` asks this process's `Executor`, and so all ranks get the same
requests. Saves by case and step: the prediction, the bytes on the card, how often a model was built, how many bytes of
the files were read, how many requests changed weights, and what was said.

CASES: a file of JSON: cases, of a name, two files, a plan for each, the share of one file's weights that the card has
room for, and what else happens.
"""

from __future__ import annotations

import gc
import json
import os
import traceback
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist

# Inference tensors cannot be labelled ones. What is imported from here on is decorated with this.
torch.inference_mode = torch.no_grad

import parallel_backend.weights.placement  # noqa: E402
import worker.rank.state  # noqa: E402
from parallel_backend.groups.timeline import Timeline  # noqa: E402
from parallel_backend.plan import ParallelPlan  # noqa: E402
from tests.support.group.footprint import Storages  # noqa: E402
from tests.support.labelled.card import card  # noqa: E402
from tests.support.labelled.tensors import GPU, on_gpu  # noqa: E402
from tests.support.labelled.watch import Memory  # noqa: E402
from tests.support.labelled.whole_way import make_executor  # noqa: E402
from tests.support.ranks.files.tiny_flux import NO_MERGE  # noqa: E402
from worker.comfyui.model import import_comfyui  # noqa: E402
from worker.comfyui.patches import pack_patches  # noqa: E402
from worker.comfyui.source import HostSource  # noqa: E402
from worker.errors import OutOfMemory  # noqa: E402
from worker.host.client import WorkerGroup  # noqa: E402
from worker.host.known_state import KnownState  # noqa: E402
from worker.launch.torchrun import COMFYUI_THREADS, THREADS  # noqa: E402
from worker.rank.executor import Executor  # noqa: E402
from worker.rank.model.host_model import HostModel  # noqa: E402
from worker.rank.operations import Operations  # noqa: E402
from worker.wire.operations import PATCH  # noqa: E402
from worker.wire.protocol import MEMORY  # noqa: E402

WITH_COUNT = (worker.rank.state, parallel_backend.weights.placement)
ARGUMENTS = ("--use-pytorch-cross-attention",)
WHOLE, ADA = 24 << 30, (8, 9)
COMFYUI = os.environ["COMFYUI_PATH"]
CHANGED = "blocks.1.ffn.0.weight"  # by the adapter

with on_gpu() as first_watch, card(first_watch.memory, WHOLE, ADA):
    import_comfyui(HostSource(COMFYUI, ARGUMENTS, "", "", "", ""))


class Case(NamedTuple):
    """happens: `grows`: in the second prompt's first step a forward needs as much memory as half of a file's weights.
    `lacks`: in the first prompt's last step memory lacks, and a third prompt follows. `adapter`: the first file has
    one. `parked`: ComfyUI frees memory between the prompts."""

    name: str
    files: list[str]
    plans: list[dict[str, Any]]
    share: float
    happens: str = ""


class Session:
    """Of this process: its one rank runs each request at once."""

    is_over, operation, ended = False, None, None

    def __init__(self, executor: Executor) -> None:
        self.executor, self.known, self.last_id = executor, KnownState(), 0

    def request(self, header: Any, tensors: Any, *_: Any) -> tuple[Any, Any]:
        self.last_id += 1
        reply, results = self.executor.execute({**header, "id": self.last_id}, dict(tensors))
        if reply.get("kind") == MEMORY:
            self.known = self.known.emptied()
        self.known.patched, self.known.sampling = reply["patched"], reply["sampling"]
        return reply, results or {}

    def await_cancelled(self, *_: Any) -> None: ...


class Use:
    """Of a card's memory, beside what was in use before."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.before = memory, memory.in_use

    def count(self) -> int:
        return self.memory.in_use - self.before

    def peak(self) -> int:
        """The most since the last time."""
        found = self.memory.peak - self.before
        self.memory.restart()
        return found


def start_group() -> WorkerGroup:
    assert (everyone := dist.group.WORLD)
    group: Any = WorkerGroup("cuda", Path())
    group.ensure = lambda *_, **__: None
    group.session = Session(make_executor(GPU, everyone, Timeline(GPU)))
    return group


def adapter() -> tuple[Any, Any]:
    from comfy.weight_adapter import LoRAAdapter

    generator = torch.Generator().manual_seed(1)
    up, down = torch.randn(64, 2, generator=generator), torch.randn(2, 256, generator=generator)
    value = LoRAAdapter(set(), (0.2 * up, 0.2 * down, None, None, None, None))
    return pack_patches({f"diffusion_model.{CHANGED}": [(1.0, value, 1.0, None, None)]}, NO_MERGE)


def of_case(case: Case, group: Any, use: Use, working: dict[str, int]) -> list[dict[str, Any]]:
    executor, told = group.session.executor, []
    generator = torch.Generator().manual_seed(0)
    latents, text = (torch.randn(1, *shape, generator=generator) for shape in ((16, 2, 8, 12), (7, 4096)))
    size, build, ran = Path(case.files[0]).stat().st_size, HostModel.build, HostModel.call
    for prompt in range(3 if case.happens == "lacks" else 2):
        if prompt and case.happens == "parked":
            with patch.object(Operations, "park_weights", park_weights):
                group.park()
        for place, (file, plan) in enumerate(zip(case.files, map(ParallelPlan.from_json, case.plans), strict=True)):
            if case.happens == "grows" and (prompt, place) == (1, 0):
                working["bytes"] += size // 2
            lacks = case.happens == "lacks" and (prompt, place) == (0, 1)
            call = patch.object(HostModel, "call", lack if lacks else ran)
            source = HostSource(COMFYUI, ARGUMENTS, file, "WanModel", "float32", "float32").to_json()
            builds: list[str] = []
            noting = staticmethod(lambda *given, builds=builds: builds.append("") or build(*given))
            changed, found = executor.counts[PATCH.name], []
            with Storages(case.files) as storages, patch.object(HostModel, "build", noting), call:
                said = group.load(source, plan.to_json(), plan.world_size, lambda: None)
                has_adapter = case.happens == "adapter" and not place
                group.patch("adapter" if has_adapter else "", adapter if has_adapter else none, lambda: None)
                kwargs = {"context": text, "transformer_options": {}}
                try:
                    found = group.call([((latents, torch.tensor([500.0])), kwargs)], lambda: None)
                except OutOfMemory as error:
                    said = str(error)
            gc.collect()
            first, patched = found[0][0].cpu() if found and found[0] else None, executor.counts[PATCH.name] - changed
            step = {"prediction": first, "in use": use.count(), "peak": use.peak(), "builds": len(builds)}
            step |= {"patched": patched, "said": said, "read": storages.read_bytes}
            told.append(step | {"status": executor.status().get("beside", "")})
    return told


def lack(*_: Any) -> Any:
    raise torch.OutOfMemoryError("Tried to allocate 1.00 GiB.")


def park_weights(_operations: Any, _job: Any, parking: Any, _places: Any) -> None:
    """Marks them: labelled storages cannot be emptied."""
    parking.is_parked = True


def none() -> tuple[Any, Any]:
    return pack_patches({}, NO_MERGE)


def on_ranks(cases: str, out: str) -> None:
    os.environ |= {THREADS: "1", COMFYUI_THREADS: "1"}
    found = {}
    for values in json.loads(Path(cases).read_text()):
        case, working = Case(*values), {"bytes": 0}
        estimate = patch.object(HostModel, "estimate_working_of_calls", lambda *_, w=working: w["bytes"])
        # A communicator would be larger than these models.
        aside, placement = (patch.object(each, "count_weights_communicator", lambda _plan: 0) for each in WITH_COUNT)
        with on_gpu() as watch, card(watch.memory, WHOLE, ADA) as there, estimate, aside, placement:
            import comfy.model_management as management

            management.current_loaded_models.clear()
            management.LORA_COMPUTE_DTYPES[GPU] = torch.float32  # as stock on the CPU
            # What ComfyUI leaves to a forward anyway, and not to other programs.
            working["bytes"] = int(management.minimum_inference_memory() - management.extra_reserved_memory())
            there.leave(int(case.share * Path(case.files[0]).stat().st_size))
            try:
                found[case.name] = of_case(case, start_group(), Use(watch.memory), working)
            except Exception:  # whatever it is fails that case's test; the others still run
                found[case.name] = traceback.format_exc()
                break
            gc.collect()
    torch.save(found, f"{out}.{dist.get_rank()}")
