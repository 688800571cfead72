"""`torchrun -m tests.support.ranks.weights.fetched_ranks CASES OUT`:
runs diffusers' models with weights that are fetched, and with the same weights whole, and saves where they are equal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.loading import ModelSource
from tests.support.cases.families import FAMILIES, SQUARE, UNEVEN
from tests.support.cases.pipefusion_cases import case_inputs, family_of, scheduler_of
from tests.support.family_model import Denoiser, FamilyModel
from tests.support.ranks.leaving import leave
from tests.support.ranks.weights.fetching import Meshes, equal_by_way, poison_buffers, ways_from


def source_of(name: str, plan: ParallelPlan, folder: Path) -> ModelSource:
    """The family's model, whose file rank 0 writes; with stages it has more blocks."""
    family = family_of(name) if plan.pipefusion > 1 else FAMILIES[name]
    place = folder / f"{name}-{plan.pipefusion > 1}"
    if not dist.get_rank() and not place.exists():
        family.save(place)
    dist.barrier()
    return ModelSource(family.model_class, family.config, (str(place / "diffusion_pytorch_model.safetensors"),))


def outputs(model: FamilyModel, name: str) -> list[torch.Tensor | None]:
    """Of forwards of either shape; with stages of a whole sampler call."""
    plan = model.of(FAMILIES[name]).mesh.plan
    if plan.pipefusion > 1:
        latents, conditions, negative = case_inputs(name)
        return [Denoiser(model).sample(latents, scheduler_of("flow"), conditions, negative, 3.0)]
    family = FAMILIES[name]
    return [model(*family.inputs(*family.shapes[shape])) for shape in (SQUARE, UNEVEN)]


def main(cases: str, out: str) -> None:
    """Cases are a family, a plan, and the kind of weights that the model is read with."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    poison_buffers()
    meshes, found = Meshes(), []
    for name, degrees, first in json.loads(Path(cases).read_text()):
        plan = ParallelPlan.from_json(degrees)
        mesh, source = meshes.of(plan), source_of(name, plan, Path(out).parent)
        right = outputs(FamilyModel.load(source, mesh), name)
        model = FamilyModel.build(source, mesh)
        equal = equal_by_way(
            model.fetched,
            ways_from(first, plan, name),
            lambda kind, mesh=mesh, model=model: meshes.store(kind, mesh, model.fetched),
            model.bring,
            lambda model=model, name=name: outputs(model, name),
            right,
        )
        found.append([name, degrees, first, equal])
    Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
