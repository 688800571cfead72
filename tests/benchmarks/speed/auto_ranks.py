"""`torchrun -m tests.benchmarks.speed.auto_ranks NAMESPACE OPTIONS FILE`: one rank of auto.py's."""

from __future__ import annotations

import json
import random
import statistics
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from parallel_backend.axes import BATCH_AXES
from parallel_backend.costs.choose import ranked
from parallel_backend.costs.forward import Forward, forward_of
from parallel_backend.costs.machine import Machine, assumed
from parallel_backend.costs.predict import Prediction, predict
from parallel_backend.groups.mesh import Axis
from parallel_backend.models import spec_for
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.forward import Forward as Running
from parallel_backend.transformer import ParallelTransformer
from tests.benchmarks.speed.contest import UNLIMITED, Meshes, agreed, say, set_rate, start, timed, twin
from tests.benchmarks.speed.link_cases import CASES, Case
from tests.benchmarks.speed.measured import measured_links, measured_speeds
from tests.benchmarks.speed.throttle import Throttle
from tests.support.links.profiles import PROFILES, counted_flops
from tests.support.ranks.leaving import leave

ALONE = Axis(None, 1, 0)
ONE = ParallelPlan()
SAMPLES = 3
# Blocks, and latents, smaller ones of them first; a step takes a rank some tenths of a second.
SIZES: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "Flux-shaped": (1, {"512²": (1, 4, 26, 26), "1024²": (1, 4, 52, 52)}),
    "Wan-shaped": (2, {"21 frames": (1, 4, 2, 32, 32), "81 frames": (1, 4, 8, 32, 32)}),
    "Z-Image-shaped": (4, {"512²": (1, 4, 20, 20), "1024²": (1, 4, 44, 44)}),
    "PixArt-shaped, guided": (3, {"512²": (2, 4, 32, 32), "1024²": (2, 4, 64, 64)}),
}


class Runner:
    """A plan, ready to run on this rank.

    Groups of the batch that have no row are given one of their own to compute: if they slept, the others would have
    more of the machine than they have in a step of all. busy: the ranks that have a row without that.
    """

    def __init__(self, plan: ParallelPlan, case: Case, model: torch.nn.Module, meshes: Meshes) -> None:
        self.transformer = ParallelTransformer(twin(model), meshes.of(plan))
        self.request = case.request()
        rows, ways, ranks = case.latents[0], plan.ways(BATCH_AXES), dist.get_world_size()
        self.idles = plan == ONE or ways > rows
        self.busy = 1 if plan == ONE else ranks // ways * min(rows, ways)
        self.rows = rows if plan == ONE else -(-rows // ways)

    @torch.inference_mode()
    def step(self) -> torch.Tensor | None:
        latents, timestep, conditions = self.request
        if not self.idles:
            return self.transformer(latents, timestep, conditions)
        conditions = {name: value[: self.rows] for name, value in conditions.items()}
        running = Running(self.transformer.slot.every_segment())
        return self.transformer.forward(latents[: self.rows], timestep[: self.rows], conditions, ALONE, running)

    def seconds(self) -> float:
        """A step, of the slowest rank that has a part of it."""
        return max(timed(self.step)[: self.busy])


def forward_cost(case: Case) -> Forward:
    """What auto knows of a model before it runs: what is counted on the meta device."""
    with torch.device("meta"):
        model = case.build(case.depth).eval()
    spec = spec_for(type(model).__name__)
    latents, timestep, conditions = case.request()
    meta = {name: value.to("meta") for name, value in conditions.items()}
    blocks = [block for name in spec.blocks for block in model.get_submodule(name).children()]

    def run() -> object:
        inputs = spec.inputs(model.config, latents.to("meta"), timestep.to("meta"), meta)
        return model(**inputs, return_dict=False)[0]

    heads = spec.sizes(model.config).heads
    return forward_of(model, blocks, run, rows=len(latents), heads=heads)


class Contest:
    """All exact plans on one model, and one rank by itself. forward: what auto knows of it."""

    def __init__(self, case: Case, meshes: Meshes) -> None:
        self.case, self.ranks, self.rows = case, dist.get_world_size(), case.latents[0]
        model = case.model()
        self.forward = forward_cost(case)
        self.limits = spec_for(type(model).__name__).limits(model.config)
        anything = assumed([""] * self.ranks, on_cpu=True)
        self.runners: dict[str, Runner] = {}
        self.refused: dict[str, str] = {}
        for plan in (ONE, *(each.plan for each in self.ranked(anything))):
            if (name := self.name(plan)) in self.runners:
                continue
            runner, failure = agreed(lambda plan=plan: Runner(plan, case, model, meshes))
            if not failure:
                _, failure = agreed(runner.step)
            if failure:
                self.refused[name] = failure
            else:
                self.runners[name] = runner
        self.flops = counted_flops(self.runners[str(ONE)].step)

    def name(self, plan: ParallelPlan) -> str:
        """That of one rank for a plan in which one rank has all that there is."""
        return str(ONE if self.rows == 1 and plan.ways(BATCH_AXES) == self.ranks else plan)

    def ranked(self, machine: Machine) -> list[Prediction]:
        check = lambda plan: plan.check_model(**self.limits)  # noqa: E731
        return ranked(self.forward, self.rows, machine, self.ranks, check=check, branches=self.case.guided)

    def measured_speed(self) -> float:
        """FLOP/s of a rank in a step by itself, while all are in theirs; of the fastest rank."""
        found = [timed(self.runners[str(ONE)].step) for _ in range(SAMPLES)]
        return self.flops / min(statistics.median(each) for each in zip(*found, strict=True))

    def measure(self, machine: Machine, rounds: int, turn: int) -> dict:
        """What is predicted and what is measured, on a link that is set by now."""
        best = self.ranked(machine)
        predicted = {str(ONE): predict(self.forward, self.rows, ONE, machine).seconds}
        predicted |= {self.name(each.plan): each.seconds for each in best}
        names = [next(name for each in best if (name := self.name(each.plan)) in self.runners)]
        dist.broadcast_object_list(names, 0)
        first = self.runners[names[0]].seconds()
        seconds: dict[str, list[float]] = {name: [] for name in self.runners}
        order = random.Random(turn)
        for _ in range(rounds):
            for name in order.sample(list(self.runners), len(self.runners)):
                seconds[name].append(self.runners[name].seconds())
        return {"predicted": predicted, "chosen": names[0], "first": first, "seconds": seconds}


def run(name: str, size: str, meshes: Meshes, namespace: str, options: dict) -> dict:
    """By profile, what was found of a model at a size."""
    depth, sizes = SIZES[name]
    case = replace(CASES[name], depth=depth, latents=sizes[size])
    set_rate(namespace, UNLIMITED)
    contest = Contest(case, meshes)
    found = {}
    for turn, profile in enumerate(options["profiles"]):
        say(f"{name} {size}, {contest.ranks} ranks: {profile}")
        set_rate(namespace, UNLIMITED)
        speeds = measured_speeds()
        rate = PROFILES[profile].rate(contest.measured_speed(), shrink=case.shrink)
        set_rate(namespace, rate)
        machine = Machine(speeds, **measured_links(rate))
        found[profile] = {"rate": rate, "machine": machine.to_json()} | contest.measure(
            machine, options["rounds"], turn
        )
    return {"profiles": found, "refused": contest.refused}


def main(namespace: str, options: str, file: str) -> None:
    """options: the cases, as model and size; rounds, profiles, and by rank how many times slower than it is. file: for
    what was found, by rank 0, after each case."""
    asked = json.loads(options)
    start()
    meshes, found = Meshes(), []
    factor = asked["slowed"][dist.get_rank()]
    with Throttle(factor) if factor > 1 else nullcontext():
        for name, size in asked["cases"]:
            found.append(run(name, size, meshes, namespace, asked))
            if dist.get_rank() == 0:
                Path(file).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
