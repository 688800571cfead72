"""`torchrun -m tests.benchmarks.speed.auto_ranks NAMESPACE OPTIONS FILE`: one rank of auto.py's."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import sys
import time
from collections import ChainMap
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import torch
import torch.distributed as dist

from parallel_backend.axes import BATCH_AXES
from parallel_backend.compat import tree_map_only
from parallel_backend.costs.choose import list_lossy_plans, list_plans, rank_plans
from parallel_backend.costs.correct import Correction, choose_prediction
from parallel_backend.costs.forward import ForwardCost, count_forward
from parallel_backend.costs.machine import Machine
from parallel_backend.costs.predict import Prediction, predict
from parallel_backend.groups.mesh import Axis
from parallel_backend.groups.timeline import Timeline
from parallel_backend.models import adapter_for
from parallel_backend.models.checks import count_tokens, sizes_of
from parallel_backend.models.parallel_mlp import count_mlp_rows
from parallel_backend.models.spec import spec_of
from parallel_backend.plan import ParallelPlan
from parallel_backend.rates import measure_ranks
from parallel_backend.sampling.denoiser import Watch
from parallel_backend.seams.forward import Forward as Running
from parallel_backend.weights.sizes import sizes_of_model
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
from tests.benchmarks.speed.link_cases import CASES, SDXL_CHANNELS, Case
from tests.benchmarks.speed.throttle import spare_half, throttled
from tests.support.cases.host import sdxl
from tests.support.fakes.measure import import_comfyui
from tests.support.family_model import FAMILY_OF, Denoiser, FamilyModel
from tests.support.links.profiles import PROFILES, counted_flops
from tests.support.ranks.leaving import leave

ALONE = Axis(None, 1, 0)
ONE, UNCORRECTED = ParallelPlan(), Correction()
SAMPLES = 7  # whose median tells a rank's speed
CORRECTING = 3  # steps of a plan that correct its prediction, by their median
LOOP_STEPS = 5  # of a sampling in the ranks
# Blocks, and latents, smaller ones of them first; a step takes a rank some tenths of a second.
SIZES: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "Flux-shaped": (1, {"512²": (1, 4, 24, 32), "1024²": (1, 4, 48, 64)}),
    "Wan-shaped": (2, {"21 frames": (1, 4, 2, 32, 32), "81 frames": (1, 4, 8, 32, 32)}),
    "Z-Image-shaped": (4, {"512²": (1, 4, 20, 20), "1024²": (1, 4, 44, 44)}),
    "PixArt-shaped, guided": (3, {"512²": (2, 4, 30, 30), "1024²": (2, 4, 60, 60)}),
    "SDXL-shaped": (1, {"512²": (1, 4, 24, 24), "1024²": (1, 4, 48, 48)}),
    "SDXL-shaped, guided": (1, {"512²": (2, 4, 24, 24), "1024²": (2, 4, 48, 48)}),
}


class Runner:
    """A plan, ready to run on this rank.

    Groups of the batch that have no row are given one of their own to compute: if they slept, the others would have
    more of the machine than they have in a step of all. busy: the ranks that have a row without that.
    """

    def __init__(self, plan: ParallelPlan, case: Case, model: torch.nn.Module, meshes: Meshes) -> None:
        self.timeline = Timeline(CPU)
        self.model = apply_plan(twin(model), meshes.of(plan, self.timeline))
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
        running = Running(self.model.slot.every_segment())
        if isinstance(self.model, FamilyModel):
            return self.model.predict(latents, timestep, conditions, ALONE, running)
        return self.model.run_rows((latents, timestep), conditions, self.rows, ALONE, running)

    def seconds(self) -> float:
        """A step, of the slowest rank that has a part of it."""
        return max(timed(self.step)[: self.busy])

    def usual(self) -> tuple[float, float]:
        """Seconds of a step, and of those the communication that this rank waited for: of the median of some."""
        found = []
        for _ in range(CORRECTING):
            before = self.timeline.communicated()
            found.append((self.seconds(), self.timeline.communicated() - before))
        return sorted(found)[CORRECTING // 2]


class StepTimes(Watch):
    """When the steps of a sampling ended, on the ranks of the first stage."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def stepped(self, step: int, timestep: float, denoised: torch.Tensor | None) -> None:
        self.ends.append(time.perf_counter())


class Looper:
    """A plan of a model of diffusers', ready to run a sampling's loop."""

    def __init__(self, plan: ParallelPlan, case: Case, model: torch.nn.Module, meshes: Meshes) -> None:
        own = apply_plan(twin(model), meshes.of(plan))
        assert isinstance(own, FamilyModel)
        self.denoiser, self.first = Denoiser(own), plan.whole_steps
        latents, _, conditions = case.request()
        self.latents = latents[:1]
        cond, uncond = ({name: value[row : row + 1] for name, value in conditions.items()} for row in (0, -1))
        self.conditions = (cond, uncond, 3.0) if case.guided else (cond,)

    def seconds(self) -> float:
        """Of a step that follows the first ones and their following one: the median, as rank 0 sees it."""
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(LOOP_STEPS)
        times = StepTimes()
        dist.barrier()
        self.denoiser.sample(self.latents, scheduler, *self.conditions, watch=times)
        ends = times.ends[self.first :]
        own = statistics.median(b - a for a, b in itertools.pairwise(ends)) if len(ends) > 1 else 0.0
        seconds = [own]
        dist.broadcast_object_list(seconds, 0)
        return seconds[0]


def forward_cost(case: Case) -> ForwardCost:
    """What auto knows of a model before it runs: what is counted on the meta device."""
    if case.comfyui:
        return sdxl.count_cost(SDXL_CHANNELS, case.latents)
    with torch.device("meta"):
        model = case.build(case.depth).eval()
    spec = adapter_for(type(model).__name__).spec
    latents, timestep, conditions = case.request()
    meta = {name: value.to("meta") for name, value in conditions.items()}
    blocks = [(each, block) for each in spec.blocks for block in model.get_submodule(each.path).children()]

    def run() -> object:
        with torch.device("meta"):
            return FAMILY_OF[type(model).__name__].reference(model, latents.to("meta"), timestep.to("meta"), meta)

    heads, head_dim, kv_heads = sizes_of(model, spec)
    image_tokens = count_tokens(model, [1, *case.latents[1:]])
    rows = [count_mlp_rows(block, each.parallel_mlp, heads * head_dim) for each, block in blocks]
    return count_forward(
        model,
        [block for _, block in blocks],
        run,
        rows=len(latents),
        heads=heads,
        kv_heads=kv_heads,
        mlp_rows=dict(ChainMap(*rows)),
        image_tokens=image_tokens,
    )


def limits_of(model: torch.nn.Module) -> dict[str, Any]:
    """What a plan is checked by."""
    spec = spec_of(type(model))
    assert spec
    return {"heads": sizes_of(model, spec).heads, "pipefusion": bool(spec.image)}


class Contest:
    """All exact plans on one model, and one rank by itself. forward: what auto knows of it. machine: the ranks, with
    any link: what plans there are follows from their speeds."""

    def __init__(self, case: Case, meshes: Meshes, machine: Machine) -> None:
        self.case, self.ranks, self.rows = case, dist.get_world_size(), case.latents[0]
        model = case.model()
        self.forward = forward_cost(case)
        self.limits = limits_of(model)
        self.runners: dict[str, Runner] = {}
        self.refused: dict[str, str] = {}
        for plan in (ONE, *(each.plan for each in self.rank_plans(machine))):
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

    def rank_plans(self, machine: Machine, correction: Correction = UNCORRECTED) -> list[Prediction]:
        """As ComfyUI's process does it."""
        check = lambda plan: plan.check_model(**self.limits)  # noqa: E731
        guided, heads = self.case.guided, self.limits["heads"]
        plans = list_plans(self.ranks, self.rows, check, branches=guided, heads=heads)
        return rank_plans(plans, self.forward, self.rows, machine, corrected=correction.correct)

    def measured_speed(self) -> float:
        """FLOP/s of a rank in a step by itself, while all are in theirs; of the fastest rank."""
        found = [timed(self.runners[str(ONE)].step) for _ in range(SAMPLES)]
        return self.flops / min(statistics.median(each) for each in zip(*found, strict=True))

    def settled(self, machine: Machine) -> tuple[list[str], dict[str, float]]:
        """The plans that are chosen one after the other, each corrected by the steps of those before, until one is
        chosen again, which is the last; and what is predicted of each plan by then."""
        raw = {self.name(each.plan): each for each in self.rank_plans(machine)}
        correction, chosen = UNCORRECTED, []
        while True:
            found = [each for each in self.rank_plans(machine, correction) if self.name(each.plan) in self.runners]
            names = [self.name(choose_prediction(found, correction).plan)]
            dist.broadcast_object_list(names, 0)
            chosen += names
            if names[0] in chosen[:-1]:
                return chosen, {self.name(each.plan): each.seconds for each in found}
            correction = correction.add_step(raw[names[0]], *self.runners[names[0]].usual())

    def measure(self, machine: Machine, rounds: int, turn: int) -> dict:
        """What is predicted and what is measured, on a link that is set by now."""
        predicted = {str(ONE): predict(self.forward, self.rows, ONE, machine).seconds}
        predicted |= {self.name(each.plan): each.seconds for each in self.rank_plans(machine)}
        chosen, corrected = self.settled(machine)
        seconds: dict[str, list[float]] = {name: [] for name in self.runners}
        order = random.Random(turn)
        for _ in range(rounds):
            for name in order.sample(list(self.runners), len(self.runners)):
                seconds[name].append(self.runners[name].seconds())
        return {"predicted": predicted, "corrected": corrected, "chosen": chosen, "seconds": seconds}


def run(name: str, size: str, meshes: Meshes, namespace: str, options: dict) -> dict:
    """By profile, what was found of a model at a size; of a deep one, which has no size, of lossy plans."""
    case = CASES[name]
    if size:
        depth, sizes = SIZES[name]
        case = replace(case, depth=depth, latents=sizes[size])
    set_rate(namespace, UNLIMITED)
    world = meshes.of(ParallelPlan(ulysses=dist.get_world_size()))["ulysses"]
    ranks = Machine.of(measure_ranks(world, CPU, torch.float32, None))
    contest = Contest(case, meshes, ranks) if size else LossyContest(case, meshes)
    found = {}
    for turn, profile in enumerate(options["profiles"]):
        say(f"{name} {size}, {dist.get_world_size()} ranks: {profile}")
        set_rate(namespace, UNLIMITED)
        rate = PROFILES[profile].rate(contest.measured_speed(), shrink=case.shrink)
        set_rate(namespace, rate)
        machine = replace(Machine.of(measure_ranks(world, CPU, torch.float32, None)), speeds=ranks.speeds)
        found[profile] = {"rate": rate, "machine": machine.to_json()} | contest.measure(
            machine, options["rounds"], turn
        )
    return {"profiles": found, "refused": contest.refused}


class LossyContest:
    """Exact plans, PipeFusion and int4 on a deep model, each as a step for a stock sampler and in a loop."""

    def __init__(self, case: Case, meshes: Meshes) -> None:
        model, ranks, rows = case.model(), dist.get_world_size(), case.latents[0]
        self.forward, self.rows, self.sizes = forward_cost(case), rows, sizes_of_model(model)
        limits = limits_of(model)
        check = lambda plan: plan.check_model(**limits)  # noqa: E731
        exact = list_plans(ranks, rows, check, branches=case.guided, heads=limits["heads"])
        plans = [each for each in exact if each.ways(BATCH_AXES) <= rows]
        plans += list_lossy_plans(ranks, rows, check, branches=case.guided)
        self.contenders: dict[str, tuple[ParallelPlan, bool, Runner | Looper]] = {}
        self.refused: dict[str, str] = {}
        for plan, loops in itertools.product((ONE, *plans), (False, True)):
            name = f"{plan}{' in a loop' if loops else ''}"
            kind = Looper if loops else Runner
            say(f"{name}: warm-up")
            contender, failure = agreed(lambda kind=kind, plan=plan: kind(plan, case, model, meshes))
            if not failure:
                _, failure = agreed(contender.seconds)
            if failure:
                self.refused[name] = failure
            else:
                self.contenders[name] = (plan, loops, contender)
        self.one = self.contenders[str(ONE)][2]
        self.flops = counted_flops(self.one.step)

    def measured_speed(self) -> float:
        found = [timed(self.one.step) for _ in range(CORRECTING)]
        return self.flops / min(statistics.median(each) for each in zip(*found, strict=True))

    def measure(self, machine: Machine, rounds: int, turn: int) -> dict:
        """What is predicted and what is measured, on a link that is set by now."""
        predicted = {
            name: predict(self.forward, self.rows, plan, machine, self.sizes, 1, loops).seconds
            for name, (plan, loops, _) in self.contenders.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in self.contenders}
        order = random.Random(turn)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for name in order.sample(list(self.contenders), len(self.contenders)):
                seconds[name].append(self.contenders[name][2].seconds())
        return {"predicted": predicted, "seconds": seconds}


def main(namespace: str, options: str, file: str) -> None:
    """options: the case, as model and size; rounds, profiles, and by rank how many times slower than it is. file: for
    what was found, by rank 0."""
    asked = json.loads(options)
    start()
    name, size = asked["case"]
    if CASES[name].comfyui:
        import_comfyui()
    with throttled(spare_half(dist.get_world_size()) * asked["slowed"][dist.get_rank()]):
        found = run(name, size, Meshes(), namespace, asked)
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
