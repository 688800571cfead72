"""`timeline_ranks`:
runs a few steps under every plan of two ranks, of which the last is slow. Returns by plan what the timeline held."""

from __future__ import annotations

import time

import diffusers
import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.groups.timeline import Timeline
from parallel_backend.plan import ParallelPlan
from tests.support.cases.families import FAMILIES
from tests.support.family_model import Denoiser, FamilyModel

PLANS = {
    "ulysses": {"ulysses": 2},
    "ring": {"ring": 2},
    "cfg": {"cfg": 2},
    "pipefusion": {"pipefusion": 2},
}
STEPS, DELAY = 3, 0.2
CPU = torch.device("cpu")


def on_ranks() -> dict[str, list]:
    family, held = FAMILIES["flux-dev"], {}
    latents, _, conditions = family.inputs(1, 16, 16)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(STEPS)
    for name, plan in PLANS.items():
        timeline = Timeline(CPU)
        mesh = build_mesh(ParallelPlan.from_json(plan), CPU, timeline=timeline)
        transformer = FamilyModel(family.build(), mesh)
        if dist.get_rank():
            last = transformer.model.get_submodule(transformer.spec.blocks[-1].path)[-1]
            last.register_forward_pre_hook(lambda *_: time.sleep(DELAY))
        with timeline.request("sample"):
            Denoiser(transformer).sample(latents, scheduler, conditions, conditions, 3.0)
        held[name] = timeline.spans()
    return held
