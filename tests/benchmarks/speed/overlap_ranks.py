"""`torchrun -m tests.benchmarks.speed.overlap_ranks NAMESPACE OPTIONS FILE`: one rank of overlap.py's."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import diffusers
import torch
import torch.distributed as dist

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.groups.mesh import Axis, Mesh, build_mesh, replica_axis
from parallel_backend.plan import HOST, SHARED, ParallelPlan
from parallel_backend.weights.sizes import fetched_places
from parallel_backend.weights.stores import Arrive, HostStore, ShardedStore
from tests.support.links.link import limit
from tests.support.links.profiles import PROFILES, measured_flops
from tests.support.ranks.leaving import leave

CPU = torch.device("cpu")
UNLIMITED = 2e9  # bytes a second, while nothing is measured
WAYS = ("whole", "shared", "half shared", "shared, no overlap", "host")


@dataclass(frozen=True)
class Case:
    """A model with 1/shrink of a real one's width and tokens. latents: their shape, with the batch that a step has."""

    build: Callable[[], torch.nn.Module]
    shrink: float
    latents: tuple[int, ...]
    conditions: Callable[[int], dict[str, torch.Tensor]]
    plan: Callable[[int], ParallelPlan]


def flux() -> torch.nn.Module:
    return diffusers.FluxTransformer2DModel(
        in_channels=16, num_layers=4, num_single_layers=8, num_attention_heads=8, attention_head_dim=64,
        joint_attention_dim=256, pooled_projection_dim=64, axes_dims_rope=(16, 24, 24),
    )  # fmt: skip


def wan() -> torch.nn.Module:
    return diffusers.WanTransformer3DModel(
        num_layers=8, num_attention_heads=5, attention_head_dim=64, in_channels=4, out_channels=4, text_dim=256,
        freq_dim=64, ffn_dim=864,
    )  # fmt: skip


def text_of(tokens: int) -> Callable[[int], dict[str, torch.Tensor]]:
    return lambda batch: {"encoder_hidden_states": torch.randn(batch, tokens, 256)}


CASES = {
    # 1024², 24 heads of 128 and 4608 tokens in the real one, 512 of them text.
    "Flux-shaped, batch 1": Case(
        flux,
        6,
        (1, 4, 52, 52),
        lambda batch: {**text_of(92)(batch), "pooled_projections": torch.randn(batch, 64)},
        lambda ranks: ParallelPlan(ulysses=ranks),
    ),
    # 81 frames of 832 × 480, 40 heads of 128 and 32760 tokens in the real one.
    "Wan-shaped, guided": Case(
        wan, 16, (2, 4, 8, 32, 32), text_of(32), lambda ranks: ParallelPlan(cfg=2, ulysses=ranks // 2)
    ),
}


class UnhiddenStore(ShardedStore):
    """Each row is asked for when its block is about to run, and not before."""

    def fetch(self, place: int, buffer: torch.Tensor) -> Arrive:
        return lambda: ShardedStore.fetch(self, place, buffer)()


STORES = {"shared, no overlap": UnhiddenStore}


class CopyEngine(HostStore):
    """What copies on its own, one row after another, `rate` bytes a second."""

    rate = UNLIMITED
    free_at = 0.0

    def fetch(self, place: int, buffer: torch.Tensor) -> Arrive:
        super().fetch(place, buffer)()
        self.free_at = max(self.free_at, time.perf_counter()) + len(buffer) / self.rate
        done = self.free_at
        return lambda: time.sleep(max(0.0, done - time.perf_counter()))


class Contender:
    """A way to keep the weights, in a model of its own, on this rank."""

    def __init__(self, way: str, case: Case, mesh: Mesh, replicas: Axis) -> None:
        torch.manual_seed(0)
        self.transformer = DiffusersModel(case.build().eval(), mesh)
        sizes = self.transformer.fetched.sizes
        kind = HOST if way == "host" else SHARED
        asked = replace(mesh.plan, weights=kind, weight_blocks=len(sizes) // 2 if way == "half shared" else 0)
        self.host = CopyEngine(sizes, CPU)
        store = self.host if kind == HOST else STORES.get(way, ShardedStore)(replicas, CPU)
        places = [] if way == "whole" else fetched_places(sizes, asked)
        self.transformer.bring(places, store if places else None)
        received = 1.0 if kind == HOST else 1 - 1 / replicas.degree
        self.kind, self.bytes = kind, [received * sizes[place] for place in places]


class Contest:
    """All ways on a link."""

    def __init__(self, case: Case, namespace: str) -> None:
        self.case, self.namespace, self.ranks = case, namespace, dist.get_world_size()
        self.limit(UNLIMITED)
        self.plan = case.plan(self.ranks)
        mesh, replicas = build_mesh(self.plan, CPU), replica_axis(self.plan, CPU)
        torch.manual_seed(1)
        self.latents, self.conditions = torch.randn(case.latents), case.conditions(case.latents[0])
        self.contenders = {way: Contender(way, case, mesh, replicas) for way in WAYS}
        results = {way: self.forward(each) for way, each in self.contenders.items()}
        for way, got in results.items():
            if got is not None and not torch.equal(got, results["whole"]):
                raise SystemExit(f"{way}: another result than that of whole weights")
        alone = replace(mesh, plan=ParallelPlan(), axes=dict.fromkeys(mesh.axes, Axis(None, 1, 0)))
        self.alone = DiffusersModel(case.build().eval(), alone)
        self.flops = 0.0

    @torch.inference_mode()
    def measure_flops(self) -> None:
        """Of a rank now, the mean over the ranks, each of which runs an image of its own."""
        one = {name: value[:1] for name, value in self.conditions.items()}
        dist.barrier()
        found = measured_flops(lambda: self.alone(self.latents[:1], torch.full((1,), 500.0), one))
        mean = torch.tensor(found, dtype=torch.float64)
        dist.all_reduce(mean)
        self.flops = mean.item() / self.ranks

    def limit(self, rate: float) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            limit(self.namespace, self.ranks, rate)
        dist.barrier()

    @torch.inference_mode()
    def forward(self, contender: Contender) -> torch.Tensor | None:
        return contender.transformer(self.latents, torch.full(self.case.latents[:1], 500.0), self.conditions)

    def rates(self, profile: str) -> dict[str, float]:
        """Bytes a second from the peers and from host memory."""
        link = PROFILES[profile]
        return {
            SHARED: link.rate(self.flops, shrink=self.case.shrink),
            HOST: link.host_rate(self.flops, shrink=self.case.shrink),
        }

    def measure(self, profile: str, way: str) -> float:
        """Seconds of a step on the slowest rank, on a link that has this profile's rate by now."""
        contender = self.contenders[way]
        contender.host.rate = self.rates(profile)[HOST]
        dist.barrier()
        started = time.perf_counter()
        self.forward(contender)
        seconds = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()


def run_case(case: Case, namespace: str, rounds: int, profiles: list[str]) -> dict:
    """What was found, a list entry a round."""
    contest = Contest(case, namespace)
    flops, rates = [], {profile: [] for profile in profiles}
    runs = {profile: {way: [] for way in WAYS} for profile in profiles}
    for turn in range(rounds):
        order = random.Random(turn)
        contest.measure_flops()
        flops.append(contest.flops)
        for profile in order.sample(profiles, len(profiles)):
            rates[profile].append(contest.rates(profile))
            contest.limit(rates[profile][-1][SHARED])
            for way in order.sample(WAYS, len(WAYS)):
                runs[profile][way].append(contest.measure(profile, way))
        contest.limit(UNLIMITED)
    return {
        "plan": {name: degree for name, degree in contest.plan.degrees().items() if degree > 1},
        "bytes": {way: each.bytes for way, each in contest.contenders.items()},
        "kinds": {way: each.kind for way, each in contest.contenders.items()},
        "flops": flops,
        "rates": rates,
        "runs": runs,
    }


def main(namespace: str, options: str, file: str) -> None:
    asked = json.loads(options)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {name: run_case(CASES[name], namespace, asked["rounds"], asked["profiles"]) for name in asked["cases"]}
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
