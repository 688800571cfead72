"""`speed.compiled_ranks CASES`:
runs models of both libraries with their blocks compiled and as they are, and saves how far apart that is, and how many
graphs each run brought."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch._dynamo.testing import EagerAndRecordGraphs
from torch._dynamo.utils import counters

from parallel_backend.groups.calls import Call
from parallel_backend.parallel_model import RunOptions
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.host_memory import HostMemory
from parallel_backend.weights.parking import Parking
from tests.support.cases.families import UNEVEN
from tests.support.cases.pipefusion_cases import family_of
from tests.support.family_model import FamilyModel
from tests.support.ranks.host_ranks import CASES, ParallelModel, Sampling, calls_of, flat
from tests.support.ranks.weights.fetching import Meshes

CUTS = (0, 2, 4, 0)  # columns less of the latents
HEIGHTS = (10, 14, 18, 10)
Model = ParallelModel | FamilyModel


class Bench(NamedTuple):
    """A model, and what runs it, one size after the other."""

    model: Model
    runs: list[Callable[[], torch.Tensor | None]]


def of_comfyui(row: str, mesh: Any) -> Bench:
    case = CASES[row]
    model = ParallelModel(case.build(), mesh, torch.float32)
    if mesh.plan.pipefusion > 1:
        sampling = Sampling(case, case.build())
        return Bench(model, [lambda: sampling.parallel(model)] * 2)

    def run(cut: int) -> torch.Tensor | None:
        (latents, *others), kwargs = calls_of(case, 1)[0]
        width = latents.shape[-1] - cut
        outputs = model.run_calls([Call((latents[..., :width].contiguous(), *others), kwargs)], steps=30)
        return flat(outputs[0]) if outputs else None

    return Bench(model, [lambda cut=cut: run(cut) for cut in CUTS])


def of_diffusers(name: str, mesh: Any) -> Bench:
    family = family_of(name)
    model = FamilyModel(family.build(), mesh).of(family)
    *sizes, _, width = family.shapes[UNEVEN]
    runs = [lambda height=height: model(*family.inputs(*sizes, height, width), steps=30) for height in HEIGHTS]
    return Bench(model, runs)


def compiled(model: Model, backend: Any) -> AbstractContextManager[None]:
    return model.running_with(RunOptions(compile={"backend": backend}))


def parked_between(bench: Bench, plain: torch.Tensor | None, backend: Any) -> list[float]:
    """How far apart the last run is once the weights have been parked and are back; nothing on ranks without result."""
    parking = Parking(bench.model.model, torch.device("cpu"))
    parking.copy(HostMemory(parking.size))
    parking.free_device()
    parking.fill_device()
    parking.end()
    with compiled(bench.model, backend):
        got = bench.runs[-1]()
    return [] if plain is None or got is None else [float((got - plain).norm() / plain.norm())]


def on_ranks(cases: list) -> list[dict]:
    """Cases are a library, a name of it, plans that follow each other, where the weights wait, and the backend:
    "eager", whose graphs are counted, or another of torch.compile's."""
    meshes, found = Meshes(), []
    for library, name, plans, weights, backend in cases:
        torch.compiler.reset()
        counters.clear()
        counting, errors, counts = EagerAndRecordGraphs(), [], []
        bench = None
        for plan in plans:
            mesh = meshes.of(ParallelPlan.from_json(plan))
            if bench is None:
                bench = (of_comfyui if library == "comfyui" else of_diffusers)(name, mesh)
                if weights:
                    fetched = bench.model.fetched
                    fetched.rearrange(range(len(fetched.blocks)), meshes.store(weights, mesh, fetched))
            else:
                bench.model.replan(mesh)
            right = [run() for run in bench.runs]
            for run, plain in zip(bench.runs, right, strict=True):
                with compiled(bench.model, counting if backend == "eager" else backend):
                    got, before = run(), len(counting.graphs)
                counts.append(before)
                if plain is not None and got is not None:
                    errors.append(float((got - plain).norm() / plain.norm()))
            if not weights:
                errors += parked_between(bench, right[-1], counting if backend == "eager" else backend)
                counts.append(len(counting.graphs))
        found.append({"errors": errors, "graphs": counts, "breaks": sum(counters["graph_break"].values())})
    return found
