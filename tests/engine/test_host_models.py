"""ComfyUI's own classes under every plan equal one process of ComfyUI's own class, with nothing of ours on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from parallel_backend.models.spec import SPECS
from parallel_backend.plan import ParallelPlan
from tests.benchmarks.host_classes import tables
from tests.support.cases.families import FAMILIES
from tests.support.cases.host import CASES as ROWS
from tests.support.cases.host.controlnets import CONTROLNETS
from tests.support.cases.host.networks import NETWORKS
from tests.support.cases.library_plans import LONG, allows
from tests.support.cases.references import relative_error
from tests.support.pages import written_table
from tests.support.ranks.pool import RankPool, split_into_jobs
from tests.support.tiers import running

Degrees = dict[str, Any]  # a plan in JSON

TOLERANCE = 1e-5
PLANS = [{"cfg": 2}, {"ulysses": 2}, {"ring": 2}, {"ring": 2, "ulysses": 2}]
# Of these, a sampling: stages with all tokens at once, and PipeFusion.
STAGES = [
    {"pipefusion": 2, "patches": 1},
    {"pipefusion": 2, "patches": 3},
    {"pipefusion": 2, "cfg": 2, "patches": 1},
    {"pipefusion": 2, "ulysses": 2, "patches": 1},
    {"pipefusion": 2, "ulysses": 2, "patches": 3},
    {"pipefusion": 2, "ring": 2, "patches": 2},
]
# Devices of unlike speed, one with next to nothing among them.
SPEEDS = [
    {"cfg": 2, "speeds": [0.2, 1]},
    {"ulysses": 2, "speeds": [1, 0.4]},
    {"ring": 2, "speeds": [0.001, 1]},
    {"ring": 2, "ulysses": 2, "speeds": [1, 1, 1, 0.25]},
    {"pipefusion": 2, "patches": 1, "speeds": [1, 0.4]},
    {"pipefusion": 2, "ring": 2, "patches": 3, "speeds": [1, 0.5, 0.25, 1]},
]
UNDER_EVERY_PLAN = ("flux-dev", "wan-vace")
# The ways to split a row between two ranks. The gate has each class once under each way, by its plans in turn: a way's
# plans meet the same seams of a class. What a class's other rows are given in other shapes is tokens, which they share.
TOKENS: list[Degrees] = PLANS[1:3]
WAYS: list[list[Degrees]] = [PLANS[:1], TOKENS, STAGES[:2]]
FIRST_ROWS = {model.model_class: row for row, model in reversed(ROWS.items())}.values()


def ranks_of(plan: Degrees) -> int:
    return ParallelPlan.from_json(plan).world_size


def serial(plan: Degrees) -> Degrees:
    """What of a plan makes a difference to the result: with stages it is a sampling, by so many patches."""
    return {"pipefusion": 2, "patches": plan["patches"]} if "pipefusion" in plan else {}


def is_slow(row: str, plan: Degrees) -> bool:
    if row in LONG or row in UNDER_EVERY_PLAN:
        return row in LONG
    place = list(ROWS).index(row)
    ways = [able for way in WAYS if (able := [each for each in way if allows(row, each)])]
    if row not in FIRST_ROWS:
        ways = [way for way in ways if way[0] in TOKENS] or ways[:1]
    return plan not in [way[place % len(way)] for way in ways]


CASES = [
    pytest.param(row, plan, marks=[pytest.mark.slow] if is_slow(row, plan) else [])
    for row in ROWS
    for plan in [*PLANS, *STAGES, *SPEEDS]
    if allows(row, plan)
]
# Three calls of three sizes at a time; and rows of a batch beside rows of a picture.
SEVERAL = [
    *(
        ("wan-t2v × 3", plan)
        for plan in (
            {"cfg": 2},
            {"cfg": 2, "ulysses": 2},
            {"dp": 2, "cfg": 2},
            {"cfg": 2, "speeds": [0.2, 1]},
            {"dp": 2, "cfg": 2, "speeds": [0.01, 1, 1, 0.4]},
        )
    ),
    ("sd15-controlnet-odd", {"cfg": 2, "ulysses": 2}),
]


class Found(NamedTuple):
    """What rank 0 gets for the tests that run, by row and plan, and what the plain class gives. mistakes: by row, in
    its spec."""

    outputs: dict[str, torch.Tensor]
    mistakes: dict[str, list[str]]


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> Found:
    root = tmp_path_factory.mktemp("host-models")
    wanted = running(request, "row", "plan")
    by_world: dict[int, list[tuple[str, Degrees, bool]]] = {}
    plain = []
    for row, plan in wanted:
        cases = by_world.setdefault(ranks_of(plan), [])
        cases.append((row, plan, True))
        if (row, serial(plan)) not in plain:
            plain.append((row, serial(plan)))
            cases.append((*plain[-1], False))
    results: dict[str, torch.Tensor] = {}
    mistakes: dict[str, list[str]] = {}
    for world, cases in by_world.items():
        for job, part in enumerate(split_into_jobs(cases)):
            out = root / f"world{world}-{job}.safetensors"
            noted_by_row = ranks.run(world, "host_ranks", part, str(out), cases=len(part))[0]
            results.update(load_file(out))
            for row, noted in noted_by_row.items():
                mistakes.setdefault(row, []).extend(noted)
    return Found(results, mistakes)


def test_each_spec_is_compared_with_its_class() -> None:
    """But for diffusers' UNet, which `test_library.py` has, and for a class whose spec says that nothing is shared."""
    compared = {case.model_class for case in (*ROWS.values(), *CONTROLNETS.values(), *FAMILIES.values())}
    compared |= {case.network for case in NETWORKS.values()}
    assert SPECS.keys() - compared == {"UNet2DConditionModel", "comfy.ldm.seedvr.model.NaDiT"}


@pytest.mark.parametrize(("row", "plan"), [*CASES, *SEVERAL], ids=str)
def test_a_class_of_comfyui_on_ranks_equals_itself(row: str, plan: Degrees, found: Found) -> None:
    alone = found.outputs[f"{row} | {json.dumps(serial(plan))} | False"]
    shared = found.outputs[f"{row} | {json.dumps(plan)} | True"]
    assert found.mistakes.get(row.partition(" ")[0], []) == []
    assert alone.abs().mean() > 1e-3, "a model that gives nothing shows nothing"
    assert shared.shape == alone.shape
    assert relative_error(shared, alone) <= TOLERANCE


def test_the_readmes_tables_of_classes_are_those_of_the_specs() -> None:
    made = tables()
    assert {name: written_table(name) for name in made} == made, (
        "write it: python -m tests.benchmarks.host_classes --write"
    )
