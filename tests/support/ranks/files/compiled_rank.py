"""`files.compiled_rank COMFYUI FILE`:
runs a case of a host in a quantised format with its blocks compiled and as they are, and saves the relative errors, and
how many graphs each call brought. The backend is torch.compile's "eager", which has no compiler.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.plan import ParallelPlan
from tests.support.cases.sized_cases import SIZED_CASES
from tests.support.cases.stock_cases import CASES
from worker.comfyui.patched_options import COMPILED
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


def on_ranks(comfyui: str, file: str) -> dict[str, list]:
    world, graphs = dist.get_world_size(), []
    name = Path(file).stem.rpartition("-")[0]

    def counting(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Any:
        """What the backend "eager" does."""
        graphs.append(graph)
        return graph.forward

    arguments = ("--cpu", "--use-pytorch-cross-attention")
    model_class = ALL[name].module.rpartition(".")[-1]
    source = HostSource(comfyui, arguments, file, model_class, "", "float32")  # weights as the file has them
    model = HostModel.load(source, build_mesh(ParallelPlan(ulysses=world), CPU))
    errors, counts = [], []
    for size in SIZES:
        right = call(model, name, size, {})
        before = len(graphs)
        compiled = call(model, name, size, {"backend": counting})
        counts.append(len(graphs) - before)
        errors += [float((one - other).norm() / other.norm()) for one, other in zip(compiled, right, strict=True)]
    return {"errors": errors, "graphs": counts}
