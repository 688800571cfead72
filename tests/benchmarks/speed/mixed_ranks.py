"""`torchrun -m tests.benchmarks.speed.mixed_ranks OPTIONS FILE`: one rank of mixed.py's."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import torch
import torch.distributed as dist

from parallel_backend.costs.machine import Machine
from parallel_backend.costs.roofline import compare_speeds
from parallel_backend.plan import ParallelPlan
from parallel_backend.rates import measure_ranks
from tests.benchmarks.speed.auto_ranks import forward_cost
from tests.benchmarks.speed.contest import CPU, Meshes, say, start, timed, twin
from tests.benchmarks.speed.link_cases import CASES
from tests.benchmarks.speed.throttle import spare_half, throttled
from tests.support.family_model import Denoiser, FamilyModel
from tests.support.ranks.leaving import leave

CASE = replace(CASES["PixArt-shaped, guided"], latents=(1, 4, 40, 40))
STEPS, TOLERANCE = 4, 1e-4
# How many images, and the plan.
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "tokens, ulysses": (1, {"ulysses": 2}),
    "tokens, ring": (1, {"ring": 2}),
    "batch of 3": (3, {"dp": 2}),
    "stages": (1, {"pipefusion": 2, "patches": 4}),
}


class Sampling:
    """A plan, ready to sample so many images on this rank."""

    def __init__(self, images: int, plan: ParallelPlan, model: torch.nn.Module, meshes: Meshes) -> None:
        self.denoiser = Denoiser(FamilyModel(twin(model), meshes.of(plan)))
        self.scheduler = diffusers.DDIMScheduler()
        self.scheduler.set_timesteps(STEPS)
        generator = torch.Generator().manual_seed(2)
        self.latents = torch.randn(images, *CASE.latents[1:], generator=generator)
        torch.manual_seed(3)
        self.conditions = CASE.conditions(images)

    @torch.inference_mode()
    def run(self) -> torch.Tensor:
        """What all ranks have then."""
        found = self.denoiser.sample(self.latents, self.scheduler, self.conditions)
        return found if found is not None else torch.zeros_like(self.latents)


def error_of(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative, of the rank that has a result."""
    error = (got - wanted).norm() / wanted.norm() if got.any() else torch.zeros(())
    dist.all_reduce(error, dist.ReduceOp.MAX)
    return error.item()


def main(options: str, file: str) -> None:
    """options: by rank how many times slower it is; the rounds. file: for what was found, by rank 0."""
    asked = json.loads(options)
    start()
    meshes = Meshes()
    with throttled(spare_half(dist.get_world_size()) * asked["slowed"][dist.get_rank()]):
        axis = meshes.of(ParallelPlan(ulysses=dist.get_world_size()))["ulysses"]
        machine = Machine.of(measure_ranks(axis, CPU, torch.float32, None))
        speeds = compare_speeds(forward_cost(CASE), machine)
        model = CASE.model()
        runs: dict[tuple[str, str], Sampling] = {}
        errors = {}
        for name, (images, degrees) in WAYS.items():
            say(name)
            plans = {
                "one": ParallelPlan(),
                "even": ParallelPlan(**degrees),
                "shared": ParallelPlan(**degrees, speeds=speeds),
            }
            results = {}
            for kind, plan in plans.items():
                runs[name, kind] = Sampling(images, plan, model, meshes)
                results[kind] = runs[name, kind].run()
            exact = "even" if plans["even"].patch_count > 1 else "one"  # stale keys are of the same patches
            errors[name] = error_of(results["shared"], results[exact])
            if not errors[name] <= TOLERANCE:
                raise SystemExit(f"{name}: relative error {errors[name]:.1e}")
        seconds: dict[str, dict[str, list[float]]] = {name: {} for name in WAYS}
        order = random.Random(0)
        for _ in range(asked["rounds"]):
            for name, kind in order.sample([*runs], len(runs)):
                taken = timed(runs[name, kind].run)
                seconds[name].setdefault(kind, []).append(taken[0] if kind == "one" else max(taken))
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps({"speeds": speeds, "seconds": seconds, "errors": errors, "steps": STEPS}))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
