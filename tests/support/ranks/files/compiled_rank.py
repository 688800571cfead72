"""`files.compiled_rank COMFYUI BACKEND FILE...`:
runs cases of a host with their blocks compiled and as they are, and saves, by file, the relative errors, and how many
graphs each call brought. FILE: of a case, or the same in a format. BACKEND is torch.compile's; of others than "eager"
the graphs are not counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo.testing import EagerAndRecordGraphs

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from tests.support.cases.stock_cases import CASES, SIZED_CASES
from worker.comfyui.call_keys import COMPILED
from worker.comfyui.source import HostSource
from worker.rank.model.host_model import HostModel

ALL = {**CASES, **SIZED_CASES}
CPU = torch.device("cpu")
SIZES = [(8, 8), (8, 12), (12, 12), (8, 8)]


def call(model: HostModel, name: str, size: tuple[int, ...], compiled: dict[str, Any]) -> list[torch.Tensor]:
    case, generator = ALL[name], torch.Generator().manual_seed(0)
    given = case.texts(generator)
    latents = torch.randn(1, *case.latent[1:-2], *size, generator=generator)
    options = {COMPILED: compiled, "sample_sigmas": torch.rand(3)}  # as of each sampling's own
    kwargs = {"transformer_options": options}
    if "pooled" in given:
        kwargs |= {"y": given["pooled"], "guidance": torch.tensor([3.5])}
    return model.call([Call((latents, torch.tensor([0.5]), given["conditioning"]), kwargs)]) or []


def compare(comfyui: str, backend: str, file: Path) -> dict[str, list]:
    world, counting = dist.get_world_size(), EagerAndRecordGraphs()
    name = file.stem if file.stem in ALL else file.stem.rpartition("-")[0]

    arguments = ("--cpu", "--use-pytorch-cross-attention")
    model_class = ALL[name].module.rpartition(".")[-1]
    dtypes = ("float32", "") if file.stem == name else ("", "float32")  # quantised weights as the file has them
    source = HostSource(comfyui, arguments, str(file), model_class, *dtypes)
    model = HostModel.build(source, build_mesh(ParallelPlan(ulysses=world), CPU))
    model.bring((), None)
    settings = {"backend": counting if backend == "eager" else backend}
    errors, counts = [], []
    for size in SIZES:
        right = call(model, name, size, {})
        before = len(counting.graphs)
        compiled = call(model, name, size, settings)
        counts.append(len(counting.graphs) - before)
        errors += [float((one - other).norm() / other.norm()) for one, other in zip(compiled, right, strict=True)]
    return {"errors": errors, "graphs": counts}


def on_ranks(comfyui: str, backend: str, *files: str) -> dict[str, dict]:
    found = {}
    for file in map(Path, files):
        torch.compiler.reset()  # or the graphs of the file before would count
        found[file.stem] = compare(comfyui, backend, file)
    return found
