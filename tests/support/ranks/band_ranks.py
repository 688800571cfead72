"""`band_ranks CHANNELS PLANS`:
runs a UNet of SDXL's proportions under plans; returns by plan the most bytes that this rank held beside weights and
input.

ComfyUI, which COMFYUI_PATH names, is imported with this, and so once for all ranks that are forked off one process.
"""

from __future__ import annotations

import gc

import torch

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from tests.support.cases.host import sdxl
from tests.support.fakes.tally import Tally
from tests.support.ranks import host_ranks  # noqa: F401 (imports ComfyUI)


def measure_peak(parallel: ParallelModel, latents: list[int]) -> int:
    """Of this rank's first forward."""
    batch = latents[0]
    call = Call((torch.randn(latents), torch.full((batch,), 500.0)), sdxl.conditions(batch))
    gc.collect()
    tally = Tally(of_cpu=True)
    for each in (*parallel.model.parameters(), *call.args, *(call.kwargs[name] for name in ("context", "y"))):
        tally.hold(each)
    before = tally.live
    with tally:
        parallel.run_calls([call])
    return tally.peak - before


def on_ranks(channels: int, plans: dict[str, list]) -> dict[str, int]:
    """channels: of the first level. plans: by name, a plan and the shape of the latents."""
    torch.manual_seed(0)
    model, found = sdxl.build(channels), {}
    for name, (degrees, latents) in plans.items():
        mesh = build_mesh(ParallelPlan.from_json(degrees), torch.device("cpu"))
        parallel = ParallelModel(model, mesh, torch.float32)
        found[name] = measure_peak(parallel, latents)
        parallel.remove()
        mesh.close()
    return found
