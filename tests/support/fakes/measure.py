"""What one rank of a plan keeps, computes and sends for a model of a published size."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import diffusers
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import Mesh, replica_axis
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import SHARED, ParallelPlan
from parallel_backend.sampling.denoiser import Watch, denoise
from parallel_backend.sampling.passes import Pass
from parallel_backend.sampling.stepper import Stepper
from parallel_backend.weights.loading import ModelSource
from parallel_backend.weights.sizes import fetched_blocks
from parallel_backend.weights.stores import ShardedStore
from tests.support.cases.host.base import of_comfyui
from tests.support.fakes.models import Model
from tests.support.fakes.rank import pretended
from tests.support.fakes.tally import Tally
from tests.support.family_model import FamilyModel
from tests.support.labelled.tensors import GPU
from worker.comfyui import model as comfyui
from worker.comfyui.source import HostSource

# Of a sampling under a plan with stages: one of the whole image; one that is measured; and one after it, as the last
# sends nothing back to the first stage.
STEPS, MEASURED = 3, 1
Parallel = FamilyModel | ParallelModel


@dataclass(frozen=True)
class Figures:
    """Of one rank. blocks: of its stage; weights: bytes that it keeps, and told: that it is said to keep before
    anything is loaded; to_fetch: likewise, that are to come to it in a forward; peak: the most bytes beside them;
    taken: likewise, of what torch's allocator has taken (see `Tally`); parameters: that it computes with.

    sent: bytes of a forward, or with stages of a step, by kind.
    """

    blocks: int
    parameters: int
    weights: int
    told: int
    to_fetch: int
    peak: int
    taken: int
    sent: Counter[str]


class StepMarks(Watch):
    """Notes what had been sent when each step began."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.marks: dict[int, Counter[str]] = {}

    def proceed(self, step: int) -> bool:
        self.marks[step] = self.tally.sent.copy()  # stages have asked before, too
        return True


def measure(model: Model, plan: ParallelPlan, rank: int) -> Figures:
    """Raises PlanError for a plan that the model does not allow."""
    with pretended(plan, rank) as mesh:
        parallel = made(model, mesh)
        tally = Tally()
        kept = [*parallel.model.parameters(), *parallel.model.buffers()]
        store = parallel.fetched.store
        for each in [*kept, *(store.on_device() if store else ())]:
            tally.hold(each)
        weights, marks = tally.live, StepMarks(tally)
        with tally:
            run(parallel, model, marks)
        if parallel.slot.buffers and isinstance(parallel, ParallelModel) and not isinstance(parallel, FamilyModel):
            raise AssertionError("An idle model holds memory of messages.")
        sent = marks.marks[MEASURED + 1] - marks.marks[MEASURED] if marks.marks else tally.sent
        parameters = sum(each.numel() for each in parallel.model.parameters())
        told = parallel.sizes.count_resident_bytes(plan)[mesh["pipefusion"].index]
        to_fetch = parallel.sizes.count_fetched_bytes(plan)
        blocks, most = len(parallel.blocks), (tally.peak - weights, tally.taken - weights)
        return Figures(blocks, parameters, weights, told, to_fetch, *most, sent)


def made(model: Model, mesh: Mesh) -> Parallel:
    """The model with its weights where the plan has them."""
    plan, store = mesh.plan, None
    if plan.weights == SHARED:
        with unset_fake_temporarily(), patch("parallel_backend.groups.mesh.shake_hands"):
            store = ShardedStore(replica_axis(plan, GPU), GPU)
    if model.library == "diffusers":
        parallel = FamilyModel.build(ModelSource(model.model_class, model.config_of(), (), "bf16"), mesh)
        parallel.bring(places_of(parallel), store)
        return parallel
    import_comfyui()
    built = of_comfyui(model.model_class, torch.bfloat16, GPU, **model.config_of()).eval().requires_grad_(False)
    parallel = ParallelModel(built, mesh, torch.bfloat16)
    parallel.fetched.rearrange(places_of(parallel), store)
    return parallel


def places_of(parallel: Parallel) -> list[int]:
    """Of this rank's blocks, those that are fetched."""
    plan = parallel.mesh.plan
    return fetched_blocks(parallel.sizes.by_stage(plan)[parallel.mesh["pipefusion"].index], plan)


def import_comfyui() -> None:
    """The one that COMFYUI_PATH names; outside of any fake mode, as it looks at the machine."""
    arguments = ("--cpu", "--use-pytorch-cross-attention")
    with unset_fake_temporarily():
        comfyui.import_comfyui(HostSource(os.environ["COMFYUI_PATH"], arguments, "", "", "", ""))


def run(parallel: Parallel, model: Model, watch: Watch) -> None:
    """A forward, as a stock sampler asks for it; with stages a sampling of STEPS steps."""
    plan, rows = parallel.mesh.plan, model.rows
    is_ours = isinstance(parallel, FamilyModel)
    dtype = torch.float32 if is_ours else torch.bfloat16  # ComfyUI casts before it calls its classes

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=GPU)

    latents = (model.channels, *model.latents)
    given: dict[str, Any] = {name: empty(rows, *shape) for name, shape in model.conditions.items()}
    if not is_ours:
        given["transformer_options"] = {}
    if plan.pipefusion * plan.patch_count > 1:
        with unset_fake_temporarily():
            stepper = Stepper.prepare(diffusers.FlowMatchEulerDiscreteScheduler(), STEPS)
        passes = [Pass(tuple(range(rows)), given)]
        denoise(parallel, empty(1, *latents), stepper, passes, 4.0, timestep_scale=1e-3, watch=watch)
    elif is_ours:
        parallel(empty(rows, *latents), empty(rows), given)
    else:
        parallel.run_calls([Call((empty(rows, *latents), empty(rows)), given)])


def unlike_ranks(plan: ParallelPlan) -> list[int]:
    """Rank 0, which has the longest share of what does not divide; the first of the last stage; and of cfg's second
    group, which sends what rank 0 collects."""
    found = [0] if plan.pipefusion == 1 else [0, (plan.pipefusion - 1) * plan.token_ways]
    return [*found, plan.world_size // 2] if plan.cfg > 1 and plan.pipefusion == 1 else found
