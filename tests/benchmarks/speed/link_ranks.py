"""`torchrun -m tests.benchmarks.speed.link_ranks NAMESPACE OPTIONS FILE`: one rank of links.py's."""

from __future__ import annotations

import copy
import functools
import json
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
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
from parallel_backend.seams.attention import ParallelAttention
from parallel_backend.seams.bands.rows import BorderRows
from tests.benchmarks.speed.link_cases import CASES, ONE, Case, Method, methods
from tests.benchmarks.speed.throttle import spare_half, throttled
from tests.support.fakes.measure import import_comfyui
from tests.support.fakes.tally import Tally
from tests.support.family_model import FamilyModel
from tests.support.links.link import limit
from tests.support.links.profiles import PROFILES, counted_flops
from tests.support.ranks.leaving import leave

CPU = torch.device("cpu")
UNLIMITED = 2e9  # bytes a second, while nothing is measured
PATIENCE = timedelta(seconds=120)  # with a rank that does not come to a collective
WARM = 2  # steps of one rank, whose speed sets the first rates


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


class BordersFirst(BorderRows):
    """Border rows that are waited for before anything is computed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.wait()
        self.works = []


@contextmanager
def without_overlap() -> Iterator[None]:
    """Models that are made while entered compute nothing while they exchange. Border rows have to run so, too."""
    attention = functools.partial(ParallelAttention, parts=1)
    with (
        mock.patch("parallel_backend.apply_plan.ParallelAttention", attention),
        mock.patch("parallel_backend.seams.bands.model.ParallelAttention", attention),
        mock.patch("parallel_backend.apply_plan.MlpOverlap", mock.Mock()),
        mock.patch("parallel_backend.seams.bands.functions.BorderRows", BordersFirst),
    ):
        yield


def enable_context_parallel(model: torch.nn.Module) -> None:
    """diffusers' own Ulysses, which takes only tuples. It takes its device from the accelerator that there is none of:
    told there is one CPU."""
    cpu = mock.Mock(type="cpu")
    with (
        mock.patch.object(torch._C, "_get_accelerator", return_value=cpu),
        mock.patch.object(torch.accelerator, "device_count", return_value=1),
    ):
        model.enable_parallelism(config=diffusers.ContextParallelConfig(ulysses_degree=dist.get_world_size()))
    forward = model.forward
    model.forward = lambda *args, **kwargs: SimpleNamespace(sample=forward(*args, **kwargs, return_dict=False)[0])


class Contender:
    """A method, ready to run on this rank. Raises what the method does not allow."""

    def __init__(self, method: Method, case: Case, model: torch.nn.Module, meshes: Meshes) -> None:
        self.method = method
        self.request = case.request()
        own = twin(model)
        if method.peer:
            enable_context_parallel(own)
        with self.ways():
            self.model = apply_plan(own, meshes.of(ParallelPlan(**method.plan or {})))

    def ways(self) -> AbstractContextManager:
        """While entered, exchanges are as the method has them."""
        return nullcontext() if self.method.overlap else without_overlap()

    @torch.inference_mode()
    def step(self) -> torch.Tensor | None:
        with self.ways():
            return run_step(self.model, self.request)

    def sent_bytes(self) -> float:
        """What this rank sends in a step."""
        with Tally(of_cpu=True) as tally:
            self.step()
        return sum(tally.sent.values())


class Contest:
    """All methods on one model. refused: those that cannot run, and why."""

    def __init__(self, case: Case, meshes: Meshes) -> None:
        model = case.model()
        self.contenders: dict[str, Contender] = {}
        self.errors: dict[str, float] = {}
        self.sent: dict[str, float] = {}  # bytes in a step, of the rank that sends most
        self.refused: dict[str, str] = {}
        wanted: torch.Tensor | None = None
        for method in methods(case, dist.get_world_size()):
            say(f"{method.name}: warm-up")
            contender, failure = agreed(lambda method=method: Contender(method, case, model, meshes))
            result = None
            if not failure:
                result, failure = agreed(contender.step)
            if method is ONE:
                wanted = result
            if failure and method is ONE:
                raise RuntimeError(failure)
            if failure:
                self.refused[method.name] = failure
                continue
            self.contenders[method.name] = contender
            self.check(method, result, wanted)
            if method.plan and method.name in self.contenders:
                most = torch.tensor(contender.sent_bytes(), dtype=torch.float64)
                dist.all_reduce(most, dist.ReduceOp.MAX)
                self.sent[method.name] = most.item()
        self.flops = counted_flops(self.contenders[ONE.name].step)
        self.speeds: list[float] = []
        for _ in range(WARM):
            self.measure_one()

    def check(self, method: Method, got: torch.Tensor | None, wanted: torch.Tensor | None) -> None:
        """A fast wrong answer is no answer."""
        error = torch.zeros((), dtype=torch.float64)
        if dist.get_rank() == 0 and got is not None and wanted is not None:
            error = ((got - wanted).norm() / wanted.norm()).double()
        dist.broadcast(error, 0)
        self.errors[method.name] = error.item()
        if not error.item() <= method.tolerance:
            self.refused[method.name] = f"wrong: relative error {error.item():.1e}"
            del self.contenders[method.name]

    def measure_one(self) -> float:
        """Seconds of a step on one rank, all ranks at once, each by itself; the link's rates go by it."""
        seconds = statistics.mean(timed(self.contenders[ONE.name].step))
        self.speeds.append(self.flops / seconds)
        return seconds

    def rate(self, profile: str, shrink: float) -> float:
        return PROFILES[profile].rate(statistics.median(self.speeds), shrink=shrink)


def run(case: Case, meshes: Meshes, namespace: str, rounds: int, profiles: list[str]) -> dict:
    """What was found, a list entry a round."""
    contest = Contest(case, meshes)
    rates = {profile: [] for profile in profiles}
    seconds = {profile: {name: [] for name in contest.contenders} for profile in profiles}
    for turn in range(rounds):
        order = random.Random(turn)
        for place, profile in enumerate(order.sample(profiles, len(profiles))):
            say(f"round {turn + 1} of {rounds}, {place + 1} of {len(profiles)}: {profile}")
            found = seconds[profile]
            set_rate(namespace, UNLIMITED)
            found[ONE.name].append(contest.measure_one())
            rates[profile].append(contest.rate(profile, case.shrink))
            others = [name for name in contest.contenders if name != ONE.name]
            for name in order.sample(others, len(others)):
                contender = contest.contenders[name]
                set_rate(namespace, rates[profile][-1] / contender.method.slower)
                found[name].append(max(timed(contender.step)))
    set_rate(namespace, UNLIMITED)
    return {
        "flops": statistics.median(contest.speeds),
        "rates": rates,
        "seconds": seconds,
        "errors": contest.errors,
        "sent": contest.sent,
        "refused": contest.refused,
    }


def main(namespace: str, options: str, file: str) -> None:
    """options: the cases, the rounds and the profiles. file: for what was found by case, by rank 0, after each."""
    asked = json.loads(options)
    start()
    set_rate(namespace, UNLIMITED)
    meshes, found, ranks = Meshes(), {}, dist.get_world_size()
    if any(CASES[name].comfyui for name in asked["cases"]):
        import_comfyui()
    for name in asked["cases"]:
        say(f"{name}, {ranks} ranks")
        with throttled(spare_half(ranks)):
            found[name] = run(CASES[name], meshes, namespace, asked["rounds"], asked["profiles"])
        if dist.get_rank() == 0:
            Path(file).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
