"""What ranks share that run several ways to do a step, one after the other, on links that change."""

from __future__ import annotations

import copy
import functools
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import diffusers
import torch
import torch.distributed as dist
from diffusers.utils import logging

from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import Mesh, build_mesh, new_group
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from tests.support.family_model import FamilyModel
from tests.support.links.link import limit

CPU = torch.device("cpu")
UNLIMITED = 2e9  # bytes a second, while nothing is measured
PATIENCE = timedelta(seconds=120)  # with a rank that does not come to a collective


def start() -> None:
    """Joins the group, with one thread of torch's, and without what diffusers has to say of its parallelism."""
    warnings.simplefilter("ignore", FutureWarning)
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)


class Meshes:
    """Meshes of plans, over groups that they share. All ranks ask for them in one order.

    Each group has threads that wake a hundred times a second, on gloo: with groups for each plan they would take a
    good part of the machine.
    """

    def __init__(self) -> None:
        self.group = functools.cache(lambda *ranks: new_group(CPU, list(ranks)))

    def of(self, plan: ParallelPlan) -> Mesh:
        with mock.patch("parallel_backend.groups.mesh.new_group", lambda _, ranks, **_options: self.group(*ranks)):
            return build_mesh(plan, CPU)


def twin(model: torch.nn.Module) -> torch.nn.Module:
    """A model with the same weights, the same tensors, and hooks and stages of its own."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def apply_plan(own: torch.nn.Module, mesh: Mesh) -> ParallelModel:
    """A model of diffusers', or of ComfyUI's, under a mesh's plan."""
    if isinstance(own, diffusers.ModelMixin):
        return FamilyModel(own, mesh)
    return ParallelModel(own, mesh, torch.float32)


def run_step(model: ParallelModel, request: tuple[torch.Tensor, torch.Tensor, dict]) -> torch.Tensor | None:
    """A forward of latents and timesteps under conditions; what rank 0 gets."""
    latents, timestep, conditions = request
    if isinstance(model, FamilyModel):
        return model(latents, timestep, conditions)
    outputs = model.run_calls([Call((latents, timestep), conditions)])
    return outputs[0] if outputs else None


def agreed(attempt: Callable[[], Any]) -> tuple[Any, str]:
    """What the attempt gave and why it failed, empty if it did on no rank; all ranks say the same of it."""
    result, failure = None, ""
    try:
        result = attempt()
    except Exception as error:  # whatever it is, the others go on
        failure = f"{type(error).__name__}: {error}".splitlines()[0]
    failures: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(failures, failure)
    return result, next(filter(None, failures), "")


def set_rate(namespace: str, rate: float) -> None:
    """Gives the link another bandwidth, while all ranks are silent."""
    dist.barrier()
    if dist.get_rank() == 0:
        limit(namespace, dist.get_world_size(), rate)
    dist.barrier()


def timed(step: Callable[[], Any]) -> list[float]:
    """Seconds of a step that all ranks run at once, by rank."""
    dist.barrier()
    started = time.perf_counter()
    step()
    own = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
    seconds = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(seconds, own)
    return [each.item() for each in seconds]


def say(what: str) -> None:
    """Progress, by rank 0."""
    if dist.get_rank() == 0:
        print(f"  {what}", file=sys.stderr, flush=True)
