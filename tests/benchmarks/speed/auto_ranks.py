"""`torchrun -m tests.benchmarks.speed.auto_ranks NAMESPACE OPTIONS FILE`: one rank of auto.py's."""

from __future__ import annotations

import json
import random
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.axes import BATCH_AXES
from parallel_backend.compat import tree_map_only
from parallel_backend.costs.choose import list_plans, order_plans
from parallel_backend.costs.forward import ForwardCost, Work, count_forward
from parallel_backend.costs.machine import Machine
from parallel_backend.groups.mesh import Axis
from parallel_backend.models.checks import attention_sizes_of
from parallel_backend.models.spec import spec_of
from parallel_backend.plan import ParallelPlan
from parallel_backend.rates import measure_ranks
from parallel_backend.seams.forward import Forward as Running
from parallel_backend.weights.sizes import WeightSizes
from tests.benchmarks.speed.contest import (
    CPU,
    UNLIMITED,
    Meshes,
    agreed,
    apply_plan,
    run_step,
    say,
    set_rate,
    start,
    timed,
    twin,
)
from tests.benchmarks.speed.link_cases import CASES, Case
from tests.benchmarks.speed.throttle import spare_half, throttled
from tests.support.family_model import FAMILY_OF
from tests.support.links.profiles import PROFILES, counted_flops
from tests.support.ranks.leaving import leave

ALONE = Axis(None, 1, 0)
ONE = ParallelPlan()
SAMPLES = 7  # whose median tells a rank's speed
# Blocks, and latents, smaller ones of them first; a step takes a rank some tenths of a second.
SIZES: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "Flux-shaped": (1, {"512²": (1, 4, 24, 32), "1024²": (1, 4, 48, 64)}),
    "Wan-shaped": (2, {"21 frames": (1, 4, 2, 32, 32), "81 frames": (1, 4, 8, 32, 32)}),
    "Z-Image-shaped": (4, {"512²": (1, 4, 20, 20), "1024²": (1, 4, 44, 44)}),
    "PixArt-shaped, guided": (3, {"512²": (2, 4, 30, 30), "1024²": (2, 4, 60, 60)}),
}


class Runner:
    """A plan, ready to run on this rank.

    Groups of the batch that have no row are given one of their own to compute: if they slept, the others would have
    more of the machine than they have in a step of all. busy: the ranks that have a row without that.
    """

    def __init__(self, plan: ParallelPlan, case: Case, model: torch.nn.Module, meshes: Meshes) -> None:
        self.model = apply_plan(twin(model), meshes.of(plan))
        self.request = case.request()
        rows, ways, ranks = case.latents[0], plan.ways(BATCH_AXES), dist.get_world_size()
        self.idles = plan == ONE or ways > rows
        self.busy = 1 if plan == ONE else ranks // ways * min(rows, ways)
        self.rows = rows if plan == ONE else -(-rows // ways)

    @torch.inference_mode()
    def step(self) -> torch.Tensor | None:
        if not self.idles:
            return run_step(self.model, self.request)
        own = tree_map_only(torch.Tensor, lambda value: value[: self.rows], self.request)
        latents, timestep, conditions = own
        running = Running(self.model.slot.every_patch())
        return self.model.run_rows((latents, timestep), conditions, len(latents), ALONE, running)

    def seconds(self) -> float:
        """A step, of the slowest rank that has a part of it."""
        return max(timed(self.step)[: self.busy])


def forward_cost(case: Case) -> ForwardCost:
    """What auto knows of a model before it runs: what is counted on the meta device."""
    with torch.device("meta"):
        model = case.build(case.depth).eval()
    latents, timestep, conditions = case.request()
    meta = {name: value.to("meta") for name, value in conditions.items()}

    def run() -> object:
        with torch.device("meta"):
            return FAMILY_OF[type(model).__name__].reference(model, latents.to("meta"), timestep.to("meta"), meta)

    return count_forward(model, run, len(latents))


class Contest:
    """All exact plans on one model, and one rank by itself. machine: the ranks, with any link: what plans there are
    follows from their speeds."""

    def __init__(self, case: Case, meshes: Meshes, machine: Machine) -> None:
        self.case, self.ranks, self.rows = case, dist.get_world_size(), case.latents[0]
        model, self.forward = case.model(), forward_cost(case)
        spec: Any = spec_of(type(model))
        heads = attention_sizes_of(model, spec).heads
        check = lambda plan: plan.check_model(heads=heads, pipefusion=bool(spec.image))  # noqa: E731
        work = Work(self.rows, forward=self.forward)
        listed = list_plans(self.ranks, self.rows, check, branches=case.guided, heads=heads)
        listed = [ONE, *(each.plan for each in order_plans(listed, work, machine, WeightSizes(0), lambda *_: None))]
        self.plans: dict[str, ParallelPlan] = {}
        self.runners: dict[str, Runner] = {}
        self.refused: dict[str, str] = {}
        for plan in listed:
            if (name := self.name(plan)) in self.runners:
                continue
            runner, failure = agreed(lambda plan=plan: Runner(plan, case, model, meshes))
            if not failure:
                _, failure = agreed(runner.step)
            if failure:
                self.refused[name] = failure
            else:
                self.plans[name], self.runners[name] = plan, runner
        self.flops = counted_flops(self.runners[str(ONE)].step)

    def name(self, plan: ParallelPlan) -> str:
        """That of one rank for a plan in which one rank has all that there is."""
        return str(ONE if self.rows == 1 and plan.ways(BATCH_AXES) == self.ranks else plan)

    def measured_speed(self) -> float:
        """FLOP/s of a rank in a step by itself, while all are in theirs; of the fastest rank."""
        found = [timed(self.runners[str(ONE)].step) for _ in range(SAMPLES)]
        return self.flops / min(statistics.median(each) for each in zip(*found, strict=True))

    def measure(self, rounds: int, turn: int) -> dict[str, list[float]]:
        """The seconds of each plan in each round, on a link that is set by now."""
        seconds: dict[str, list[float]] = {name: [] for name in self.runners}
        order = random.Random(turn)
        for _ in range(rounds):
            for name in order.sample(list(self.runners), len(self.runners)):
                seconds[name].append(self.runners[name].seconds())
        return seconds


def run(name: str, size: str, meshes: Meshes, namespace: str, options: dict) -> dict:
    """What was found of a model at a size, by profile, and what predictions are made from."""
    case = CASES[name]
    depth, sizes = SIZES[name]
    case = replace(case, depth=depth, latents=sizes[size])
    set_rate(namespace, UNLIMITED)
    world = meshes.of(ParallelPlan(ulysses=dist.get_world_size()))["ulysses"]
    ranks = measure(world)
    contest = Contest(case, meshes, ranks)
    found = {}
    for turn, profile in enumerate(options["profiles"]):
        say(f"{name} {size}, {dist.get_world_size()} ranks: {profile}")
        set_rate(namespace, UNLIMITED)
        rate = PROFILES[profile].rate(contest.measured_speed(), shrink=case.shrink)
        set_rate(namespace, rate)
        machine = replace(measure(world), speeds=ranks.speeds)
        found[profile] = {"machine": asdict(machine), "seconds": contest.measure(options["rounds"], turn)}
    plans = {name: plan.to_json() for name, plan in contest.plans.items()}
    forward = {"rows": contest.rows, "cost": asdict(contest.forward)}
    return {"profiles": found, "plans": plans, "forward": forward, "refused": contest.refused}


def measure(world: Axis) -> Machine:
    """The ranks and their link as they measure themselves. A throttled link needs none of their cores."""
    return replace(Machine.of(measure_ranks(world, CPU, torch.float32, None)), hides=1.0)


def main(namespace: str, options: str, file: str) -> None:
    """options: the case, as model and size; rounds, profiles, and by rank how many times slower than it is. file: for
    what was found, by rank 0."""
    asked = json.loads(options)
    start()
    name, size = asked["case"]
    with throttled(spare_half(dist.get_world_size()) * asked["slowed"][dist.get_rank()]):
        found = run(name, size, Meshes(), namespace, asked)
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
