"""One rank of a world of any size, in a process that is alone: tensors without memory on a GPU that there is not.

While `pretended` is entered, the engine's own code runs on fake tensors, whose shapes, dtypes and devices are right and
that hold nothing; collectives of torch's fake process group return at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore

from parallel_backend import diffusers_model
from parallel_backend.groups.mesh import Mesh, build_mesh
from parallel_backend.groups.timeline import SILENT, Timeline
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling import denoiser
from parallel_backend.sampling.stepper import Stepper
from parallel_backend.weights import loading
from parallel_backend.weights.loading import Check, ModelSource, go_on
from tests.support.labelled.tensors import GPU, choosing_attention, lend_guard

CAPABILITY = (8, 9)
REGIONS, COPY, INFERENCE = denoiser.patch_regions, Stepper.copy, torch.inference_mode


@contextlib.contextmanager
def in_world(rank: int, ranks: int) -> Iterator[None]:
    """While entered, this process is a rank of so many, whose collectives return at once."""
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def one_of(plan: ParallelPlan, device: torch.device, rank: int = 0, timeline: Timeline = SILENT) -> Iterator[Mesh]:
    """While entered, this is the rank of the plan's world; its mesh."""
    with in_world(rank, plan.world_size):
        with patch("parallel_backend.groups.mesh.shake_hands"):
            mesh = build_mesh(plan, device, timeline=timeline)
        yield mesh
        mesh.close()


@contextlib.contextmanager
def pretended(plan: ParallelPlan, rank: int) -> Iterator[Mesh]:
    """While entered, likewise on a GPU."""
    lend_guard()
    with one_of(plan, GPU, rank) as mesh, contextlib.ExitStack() as stack:
        for owner, name, value in (
            (torch.cuda, "get_device_capability", lambda *_: CAPABILITY),
            (torch, "inference_mode", without_gradients),
            (torch.nn.Module, "to", buffers_to),
            (loading, "read_tensors", empty_tensors),
            (diffusers_model, "read_tensors", empty_tensors),
            (denoiser, "patch_regions", patch_regions),
            (Stepper, "copy", copy_stepper),
        ):
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(choosing_attention())
        yield mesh


def without_gradients(mode: bool = True) -> contextlib.AbstractContextManager:
    """In the place of `torch.inference_mode`, in which layers come undivided."""
    return torch.no_grad() if mode else INFERENCE(mode)


def empty_tensors(source: ModelSource, wanted: dict[str, torch.Size], _check: Check = go_on) -> dict[str, torch.Tensor]:
    """What `read_tensors` would read from files."""
    dtype = loading.DTYPES[source.dtype]
    return {name: torch.empty(shape, dtype=dtype, device=GPU) for name, shape in wanted.items()}


def buffers_to(module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """`Module.to` of a module whose parameters are there, as it cannot change fake ones."""
    for owner in module.modules():
        for name, buffer in list(owner.named_buffers(recurse=False)):
            setattr(owner, name, buffer.to(device))
    return module


def patch_regions(latents: torch.Tensor, patch_: tuple[int, ...], patches: int, device: torch.device) -> list:
    """The denoiser's, on real tensors: it looks at values."""
    with unset_fake_temporarily():
        made = REGIONS(latents, patch_, patches, torch.device("cpu"))
    return [each.to(device) for each in made]


def copy_stepper(stepper: Stepper) -> Stepper:
    """A stepper's copy, whose scheduler has real tensors."""
    with unset_fake_temporarily():
        return COPY(stepper)
