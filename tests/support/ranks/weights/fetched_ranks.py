"""`weights.fetched_ranks LIBRARY CASES FOLDER`:
runs models of a library with weights that are fetched, and with the same weights whole, and returns where they are
equal. FOLDER gets diffusers' files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from parallel_backend.groups.mesh import Mesh
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.loading import ModelSource
from parallel_backend.weights.prefetcher import BlockPrefetcher
from tests.support.cases.families import FAMILIES, SQUARE, UNEVEN
from tests.support.cases.host import CASES
from tests.support.cases.pipefusion_cases import family_of
from tests.support.family_model import FamilyModel, sampled
from tests.support.ranks.host_ranks import Sampling, flat, steps_of
from tests.support.ranks.weights.fetching import Meshes, Way, poison_buffers, same, ways_from

Outputs = list[torch.Tensor | None]


class Bench(NamedTuple):
    """A model, how its weights are brought to other places, what runs it, and what whole weights give."""

    fetched: BlockPrefetcher
    bring: Callable[..., None]
    run: Callable[[], Outputs]
    right: Outputs


def source_of(name: str, plan: ParallelPlan, folder: Path) -> ModelSource:
    """The family's model, whose file rank 0 writes; with stages it has more blocks."""
    family = family_of(name) if plan.pipefusion > 1 else FAMILIES[name]
    place = folder / f"{name}-{plan.pipefusion > 1}"
    if not dist.get_rank() and not place.exists():
        family.save(place)
    dist.barrier()
    return family.source(place)


def of_diffusers(name: str, mesh: Mesh, folder: Path) -> Bench:
    """Runs forwards of either shape; with stages a whole sampler call."""
    source = source_of(name, mesh.plan, folder)

    def run(model: FamilyModel) -> Outputs:
        model.of(FAMILIES[name])
        if mesh.plan.pipefusion > 1:
            return [sampled(model, name)]
        family = FAMILIES[name]
        return [model(*family.inputs(*family.shapes[shape])) for shape in (SQUARE, UNEVEN)]

    right, model = run(FamilyModel.load(source, mesh)), FamilyModel.build(source, mesh)
    return Bench(model.fetched, model.bring, lambda: run(model), right)


def of_comfyui(name: str, mesh: Mesh, _folder: Path) -> Bench:
    """Runs so many calls at once as are behind the name, in all steps; with stages a sampling."""
    row, _, count = name.partition(" × ")
    case = CASES[row]
    model = ParallelModel(case.build(), mesh, torch.float32)

    def run() -> Outputs:
        if mesh.plan.pipefusion > 1:
            return [Sampling(case, case.build()).parallel(model)]
        model.forget()
        got = [flat(each) for calls in steps_of(case, int(count or 1)) for each in model.run_calls(calls) or ()]
        return [torch.cat(got) if got else None]

    return Bench(model.fetched, model.fetched.rearrange, run, run())


def equal_by_way(bench: Bench, ways: Sequence[Way], meshes: Meshes, mesh: Mesh) -> dict[str, bool]:
    """By way, whether this rank gets the bits of whole weights."""
    assert bench.fetched.blocks, "the spec lists no blocks to fetch"
    found = {}
    for number, way in enumerate(ways):
        bench.bring(way.places(len(bench.fetched.blocks)), meshes.store(way.kind, mesh, bench.fetched))
        dist.barrier()  # each has written to the host's memory what the others read there
        found[f"{number} {way}"] = same(bench.run(), bench.right)
    return found


def on_ranks(library: str, cases: list, folder: str) -> list[Any]:
    """Cases are a name (of FAMILIES; or of CASES, with the number of calls behind it if they are several), a plan, and
    the kind of weights that come first."""
    poison_buffers()
    meshes, found = Meshes(), []
    for name, degrees, first in cases:
        plan = ParallelPlan.from_json(degrees)
        mesh = meshes.of(plan)
        bench = {"diffusers": of_diffusers, "comfyui": of_comfyui}[library](name, mesh, Path(folder))
        ways = ways_from(first, plan, name.partition(" × ")[0])
        found.append([name, degrees, first, equal_by_way(bench, ways, meshes, mesh)])
    return found
