"""`weights.removal_ranks FOLDER REMOVED PIPELINES`:
plans put on models, and taken off. Returns by case which promises hold. FOLDER holds the weights of a family.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch

from parallel_backend import ParallelPlan, parallelize, unparallelize
from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh import Mesh, build_mesh
from tests.support.cases.families import FAMILIES, SQUARE
from tests.support.cases.library_cases import CALLS, seeded
from tests.support.cases.pipefusion_cases import family_of
from tests.support.family_model import FamilyModel, sampled

CPU = torch.device("cpu")
STOPPED = "flux-dev"
KINDS_OF_HOOKS = [
    f"_forward_{kind}"
    for kind in ("pre_hooks", "pre_hooks_with_kwargs", "hooks", "hooks_with_kwargs", "hooks_always_called")
]


def traces(model: torch.nn.Module) -> dict[str, list]:
    """By module, all that could be left of ours: its class, its attributes, its hooks, the kinds of its weights."""
    return {
        path: [
            type(module).__name__,
            sorted(vars(module)),
            [len(getattr(module, kind)) for kind in KINDS_OF_HOOKS],
            [
                (name, type(weight).__name__, weight.requires_grad)
                for name, weight in module.named_parameters(recurse=False)
            ],
            [(name, repr(value)) for name, value in vars(module).items() if isinstance(value, (int, float, str))],
        ]
        for path, module in model.named_modules()
    }


once = functools.cache(build_mesh)


def mesh_of(degrees: dict[str, int]) -> Mesh:
    return once(ParallelPlan.from_json(degrees), CPU)


@functools.cache
def plain(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """A family's whole model, and what it gives; one for all plans, none of which leaves anything on it."""
    family = FAMILIES[name]
    model = family.build()
    with torch.inference_mode():
        return model, family.reference(model, *family.inputs(*family.shapes[SQUARE]))


def removed(name: str, degrees: dict[str, int]) -> dict[str, bool]:
    """A family's whole model before a plan is put on it, and after it was taken off."""
    family = FAMILIES[name]
    latents, timestep, conditions = family.inputs(*family.shapes[SQUARE])
    model, expected = plain(name)
    before, weights = traces(model), {key: value.clone() for key, value in model.state_dict().items()}
    transformer = FamilyModel(model, mesh_of(degrees)).of(family)
    marked = traces(model) != before
    if "pipefusion" not in degrees:
        transformer(latents, timestep, conditions)
    transformer.remove()
    after = model.state_dict()
    with torch.inference_mode():
        got = family.reference(model, latents, timestep, conditions)
    return {
        "the plan left its traces": marked,
        "none is left": traces(model) == before,
        "the weights are the same": [*weights] == [*after] and all(weights[k].equal(after[k]) for k in weights),
        "the model gives the same": got.equal(expected),
    }


def pipeline(call_name: str, plans: list[dict[str, int]]) -> dict[str, bool]:
    """A pipeline made parallel, plain again, and parallel by another plan; no plain one knows of it."""
    call = CALLS[call_name]
    made = call.pipeline()

    def images() -> torch.Tensor:
        return call.run(made, 2, seeded())

    parts = [part for part in (made.transformer, made.vae) if part]

    def marks() -> list[Any]:
        return [traces(part) for part in parts]

    plain, before = images(), marks()
    found = {}
    for degrees in plans:
        parallelize(made, ParallelPlan.from_json(degrees), vae=made.vae is not None)
        parallel = images()
        changed = [now != was for now, was in zip(marks(), before, strict=True)]
        found[f"{degrees} is parallel"] = all(changed)
        found[f"{degrees} gives the images"] = bool((parallel - plain).norm() <= 1e-5 * plain.norm())
        unparallelize(made)
        found[f"{degrees} leaves nothing"] = marks() == before
        found[f"{degrees} leaves the images"] = images().equal(plain)
    try:
        unparallelize(made)
    except RequestError as error:
        found["a plain one is refused"] = "is not parallel" in str(error)
    return found


def stopped(folder: Path) -> dict[str, bool]:
    """What was read for one stage alone cannot be put back: refused, and it still works."""
    transformer = FamilyModel.load(family_of(STOPPED).source(folder / STOPPED), mesh_of({"pipefusion": 2}))
    expected = sampled(transformer, STOPPED)
    found = {}
    try:
        transformer.remove()
    except RequestError as error:
        found["the rest is said to be missing"] = "no weights to put back" in str(error)
    got = sampled(transformer, STOPPED)
    found["it still gives the same"] = got is None if expected is None else got.equal(expected)
    return found


def case_name(name: str, degrees: dict[str, int]) -> str:
    return f"{name} {json.dumps(degrees)}"


def on_ranks(folder: str, removing: list, pipelines: dict[str, list]) -> dict[str, dict]:
    found = {case_name(name, degrees): removed(name, degrees) for name, degrees in removing}
    found |= {f"{name}, pipeline": pipeline(name, plans) for name, plans in pipelines.items()}
    return {**found, STOPPED: stopped(Path(folder))}
