"""`cuda.sparse_ranks`:
runs a video model under plans with sparse attention on ranks whose tensors say that they are on a GPU, and saves by
plan the relative error against the CPU, and how often the host would have waited inside of blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Inference tensors cannot be labelled ones. What is imported from here on is decorated with this.
torch.inference_mode = torch.no_grad

from parallel_backend.groups.mesh import build_mesh  # noqa: E402
from parallel_backend.models.checks import modules_at  # noqa: E402
from parallel_backend.plan import ParallelPlan  # noqa: E402
from tests.support.cases.families import wan  # noqa: E402
from tests.support.cases.references import relative_error  # noqa: E402
from tests.support.family_model import FamilyModel  # noqa: E402
from tests.support.labelled.flex import flex_on_labelled  # noqa: E402
from tests.support.labelled.tensors import GPU, off_gpu, on_gpu  # noqa: E402
from tests.support.labelled.watch import Watch  # noqa: E402

VIDEO = (2, 9, 16, 22)  # 88 tokens a frame, in seven blocks of the kernel
FAMILY = wan(attention_head_dim=16, num_attention_heads=4)
STEPS = (1.0, 0.8, 0.6)  # the first one is dense


def run_steps(plan: ParallelPlan, device: torch.device, watch: Watch | None = None) -> list[torch.Tensor | None]:
    """The predictions of the steps. Inside of blocks, all of them are watched: the pattern is built there."""
    with off_gpu():
        built, (latents, timesteps, conditions) = FAMILY.build(), FAMILY.inputs(*VIDEO)
    model = FamilyModel(built.to(device), build_mesh(plan, device, link_groups=True))
    for block in modules_at(model.model, "blocks") if watch else ():
        block.register_forward_pre_hook(lambda *_: watch.enter(), prepend=True)
        block.register_forward_hook(lambda *_: watch.leave(), always_call=True)
    found = []
    for part in STEPS:
        if watch:
            watch.begin()
        found.append(model(latents, timesteps * part, conditions))
        if watch:
            watch.end()
    return found


def compare(plan: ParallelPlan, on_cpu: Callable[[], list[torch.Tensor | None]]) -> dict[str, Any]:
    right = on_cpu()
    with on_gpu(counts_memory=False) as watch, flex_on_labelled():
        found = [each if each is None else each.cpu() for each in run_steps(plan, GPU, watch)]
    errors = [relative_error(*pair) for pair in zip(found, right, strict=True) if pair[0] is not None]
    return {"errors": errors, "inside": watch.inside}


def on_ranks() -> dict[str, dict]:
    told = {}
    for degrees in ({"ulysses": 2}, {"cfg": 2}):
        for sparse in ("radial", "radial_narrow"):
            plan = ParallelPlan(sparse=sparse, **degrees)
            told[str(plan)] = compare(plan, lambda plan=plan: run_steps(plan, torch.device("cpu")))
    return told
