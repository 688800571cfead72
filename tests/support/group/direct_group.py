"""A worker group without a ComfyUI: what tests of the ranks alone share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.loading import ModelSource
from tests.support.cases.families import Family
from worker.host.client import WorkerGroup
from worker.wire.sampler_call import SamplerCall, SamplerPass

CALL = SamplerCall(scheduler="DDIM", steps=3)


def go_on() -> None:
    """The check of who waits as long as it takes."""


@dataclass(frozen=True)
class DirectGroup:
    """A running group, and a tiny model of a family for it."""

    group: WorkerGroup
    family: Family
    source: ModelSource
    plan: ParallelPlan

    def load(self, check: Callable[[], None] = go_on) -> None:
        self.group.load(self.source.to_json(), self.plan.to_json(), self.plan.world_size, check)

    def forward(self, *sizes: int) -> torch.Tensor:
        """A forward of a batch of two."""
        return self.group.forward(*self.family.inputs(2, *sizes), go_on)

    def sample(self, *sizes: int, call: SamplerCall = CALL, check: Callable[[], None] = go_on) -> torch.Tensor:
        """A whole sampler call of a batch of two."""
        noise, _, conditions = self.family.inputs(2, *sizes)
        return self.group.sample(call, {"noise": noise}, [SamplerPass((0,), conditions)], check, lambda *_: check())

    def pids(self) -> list[int]:
        return self.group.status()["pids"]


def direct_on(group: WorkerGroup, folder: Path, family: Family, **degrees: int) -> DirectGroup:
    """The group with the family's tiny model, which is saved in the folder, under this plan."""
    weights = family.save(folder) / "diffusion_pytorch_model.safetensors"
    source = ModelSource(family.model_class, family.config, (str(weights),))
    direct = DirectGroup(group, family, source, ParallelPlan(**degrees))
    direct.load()
    return direct


@contextmanager
def direct_group(folder: Path, family: Family, **degrees: int) -> Iterator[DirectGroup]:
    """A group of its own with the family's tiny model under this plan; ask for `own_ranks`."""
    group = WorkerGroup("cpu", folder / "logs")
    try:
        yield direct_on(group, folder / "model", family, **degrees)
    finally:
        group.stop()


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it came to hold in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
