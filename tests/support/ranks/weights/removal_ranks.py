"""`weights.removal_ranks FOLDER`:
plans put on models, taken off, and changed for others.

FOLDER holds a folder of each family's weights. What was found is written to FOLDER/found.RANK.json, by case name.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend import ParallelPlan, parallelize, unparallelize
from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.weights.loading import ModelSource
from tests.support.cases.families import FAMILIES, SQUARE
from tests.support.cases.library_cases import CALLS, SEED
from tests.support.cases.pipefusion_cases import case_inputs, family_of, scheduler_of
from tests.support.cases.removal_cases import PARKED, PIPELINES, STOPPED, case_name
from tests.support.family_model import Denoiser, FamilyModel

CPU = torch.device("cpu")
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


@functools.cache
def plain(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """A family's whole model, and what it gives; one for all plans, none of which leaves anything on it."""
    family = FAMILIES[name]
    model = family.build()
    with torch.inference_mode():
        return model, family.reference(model, *family.inputs(*family.shapes[SQUARE]))


def removed(name: str, degrees: dict[str, int], mesh_of: Any) -> dict[str, bool]:
    """A family's whole model before a plan is put on it, and after it was taken off."""
    family = FAMILIES[name]
    latents, timestep, conditions = family.inputs(*family.shapes[SQUARE])
    model, expected = plain(name)
    before, weights = traces(model), {key: value.clone() for key, value in model.state_dict().items()}
    transformer = FamilyModel(model, mesh_of(degrees)).of(family)
    marked = traces(model) != before
    if "pipefusion" not in degrees:
        transformer(latents, timestep, conditions)
    if degrees in PARKED:
        transformer.parking.copy()
        transformer.parking.free_device()
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


def result_of(transformer: FamilyModel, name: str) -> torch.Tensor | None:
    """Of a whole sampler call."""
    latents, conditions, negative = case_inputs(name)
    return Denoiser(transformer.of(family_of(name))).sample(latents, scheduler_of("flow"), conditions, negative, 3.0)


def pipeline(call_name: str, plans: list[dict[str, int]]) -> dict[str, bool]:
    """A pipeline made parallel, plain again, and parallel by another plan; no plain one knows of it."""
    call = CALLS[call_name]
    made = call.pipeline()

    def images() -> torch.Tensor:
        return call.run(made, 2, torch.Generator().manual_seed(SEED))

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


def stopped(name: str, degrees: dict[str, int], folder: Path, mesh_of: Any) -> dict[str, bool]:
    """What was read for one stage alone cannot be put back, nor shared out otherwise: refused, and it still works."""
    family = family_of(name)
    files = (str(folder / name / "diffusion_pytorch_model.safetensors"),)
    source = ModelSource(family.model_class, family.config, files)
    transformer = FamilyModel.load(source, mesh_of(degrees))
    expected = result_of(transformer, name)
    found = {}
    try:
        transformer.remove()
    except RequestError as error:
        found["the rest is said to be missing"] = "no weights to put back" in str(error)
    try:
        transformer.replan(mesh_of({"ulysses": 2}))
    except ValueError as error:
        found["another share of the weights is refused"] = "shares out the weights in another way" in str(error)
    got = result_of(transformer, name)
    found["it still gives the same"] = got is None if expected is None else got.equal(expected)
    return found


def on_ranks(folder: str, removing: list) -> dict[str, dict]:
    root, world, meshes, found = Path(folder), dist.get_world_size(), {}, {}

    def mesh_of(degrees: dict[str, int]) -> Any:
        plan = ParallelPlan.from_json(degrees)
        if plan not in meshes:
            meshes[plan] = build_mesh(plan, CPU)
        return meshes[plan]

    def wanted(cases: list[tuple]) -> list[tuple]:
        return [case for case in cases if case[-1] == world]

    for name, degrees, _ in wanted(removing):
        found[case_name("removed", name, degrees)] = removed(name, degrees, mesh_of)
    for name, degrees, _ in wanted(STOPPED):
        found[case_name("stopped", name, degrees)] = stopped(name, degrees, root, mesh_of)
    for name, plans, _ in wanted(PIPELINES):
        found[case_name("pipeline", name, plans)] = pipeline(name, plans)
    return found
