"""`torchrun -m tests.benchmarks.speed.link_ranks NAMESPACE OPTIONS FILE`: one rank of links.py's."""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import diffusers
import torch
import torch.distributed as dist

from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.bands.rows import Borders, exchange_borders
from tests.benchmarks.speed.contest import (
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
from tests.benchmarks.speed.link_cases import CASES, ONE, Case, Method, methods
from tests.benchmarks.speed.throttle import spare_half, throttled
from tests.support.fakes.measure import import_comfyui
from tests.support.fakes.tally import Tally
from tests.support.links.profiles import PROFILES, counted_flops
from tests.support.ranks.leaving import leave

WARM = 2


def exchange_borders_first(*given: Any) -> Callable[[], Borders]:
    """An exchange of border rows that is waited for before anything is computed."""
    borders = exchange_borders(*given)()
    return lambda: borders


@contextmanager
def without_overlap() -> Iterator[None]:
    """Models that are made while entered compute nothing while they exchange. Border rows have to run so, too."""
    with (
        mock.patch("parallel_backend.seams.attention.EXCHANGE_PARTS", 1),
        mock.patch("parallel_backend.apply_plan.MlpOverlap", mock.Mock()),
        mock.patch("parallel_backend.seams.bands.functions.exchange_borders", exchange_borders_first),
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
