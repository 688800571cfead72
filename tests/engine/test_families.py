"""Every family under every plan equals one process on plain diffusers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from parallel_backend.plan import ParallelPlan
from tests.support.cases.families import FAMILIES, LAST_OF_CLASS, SQUARE, UNEVEN
from tests.support.cases.library_plans import family_allows
from tests.support.cases.references import plain_diffusers, relative_error
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

Degrees = dict[str, Any]  # a plan in JSON

TOLERANCE = 1e-5
PLANS: list[Degrees] = [
    {},
    {"ulysses": 2},
    {"ring": 2},
    {"cfg": 2},
    {"dp": 2},
    {"ulysses": 4},
    {"ring": 4},
    {"ring": 2, "ulysses": 2},
    {"cfg": 2, "ulysses": 2},
]
BF16_PLAN: Degrees = {"ulysses": 2}
BF16_TOLERANCE = 2e-2
# The gate has every family with its tokens split between two ranks, unevenly, and with its calls split; each by one of
# two plans in turn, which meet the same seams of a family. Under every plan it has these: one stream with
# cross-attention, of both shapes, two streams, and a video's. In bf16 it has one family of each class.
UNDER_EVERY_PLAN = ("pixart-alpha", "flux-dev", "wan-t2v")
IN_TURN: dict[str, list[Degrees]] = {UNEVEN: [{"ulysses": 2}, {"ring": 2}], SQUARE: [{"cfg": 2}, {"dp": 2}]}


# Devices of unlike speed: tokens and rows by it, one with next to nothing among them.
SPEED_PLANS: list[Degrees] = [
    {"ulysses": 2, "speeds": [1, 0.5]},
    {"ulysses": 2, "speeds": [0.001, 1]},
    {"ring": 2, "speeds": [1, 0.001]},
    {"cfg": 2, "speeds": [0.2, 1]},
    {"dp": 2, "speeds": [1, 3]},
    {"ring": 3, "speeds": [3, 1, 2]},
    {"ring": 2, "ulysses": 2, "speeds": [1, 1, 1, 0.25]},
    {"cfg": 2, "ulysses": 2, "speeds": [1, 0.5, 0.25, 1]},
]


def world_size(plan: Degrees) -> int:
    return ParallelPlan.from_json(plan).world_size


def is_quick(family: str, plan: Degrees, shape: str) -> bool:
    if family in UNDER_EVERY_PLAN:
        return shape != SQUARE or family == UNDER_EVERY_PLAN[0]
    turns = [each for each in IN_TURN.get(shape, IN_TURN[UNEVEN]) if family_allows(family, each)] or [{}]
    return plan == turns[list(FAMILIES).index(family) % len(turns)]


CASES = [
    pytest.param(family, plan, shape, marks=[] if is_quick(family, plan, shape) else [pytest.mark.slow])
    for family in FAMILIES
    for plan in PLANS + SPEED_PLANS
    if family_allows(family, plan)
    for shape in FAMILIES[family].shapes
]
BF16 = [family for family in LAST_OF_CLASS if family_allows(family, BF16_PLAN)]


def case_name(family: str, plan: Degrees, shape: str, dtype: str = "fp32") -> str:
    return f"{family} | {json.dumps(plan)} | {shape} | {dtype}"


@pytest.fixture(scope="module")
def predictions(
    request: pytest.FixtureRequest, ranks: RankPool, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """Rank 0's prediction of the cases of the tests that run, by name; all of a world size are run at once."""
    root, found = tmp_path_factory.mktemp("predictions"), {}
    wanted = [(*case, "fp32") for case in running(request, "family", "plan", "shape")]
    for (family,) in running(request, "bf16_family"):
        wanted += [(family, plan, UNEVEN, "bf16") for plan in ({}, BF16_PLAN)]
    for family in {case[0] for case in wanted}:
        FAMILIES[family].save(root / family)
    for world in sorted({world_size(plan) for _, plan, *_ in wanted}):
        cases = [
            {
                "name": case_name(family, plan, shape, dtype),
                "family": family,
                "folder": str(root / family),
                "plan": plan,
                "shape": FAMILIES[family].shapes[shape],
                "dtype": dtype,
            }
            for family, plan, shape, dtype in wanted
            if world_size(plan) == world
        ]
        found |= ranks.run(world, "family_ranks", cases, cases=len(cases))[0][1]
    return found


@pytest.mark.parametrize(("family", "plan", "shape"), CASES, ids=lambda value: str(value))
def test_sharded_prediction_equals_plain_diffusers(
    family: str, plan: Degrees, shape: str, predictions: dict[str, torch.Tensor]
) -> None:
    expected = plain_diffusers(family, shape)
    got = predictions[case_name(family, plan, shape)]
    assert got.shape == expected.shape
    assert relative_error(got, expected) <= TOLERANCE


@pytest.mark.parametrize("bf16_family", BF16)
def test_sharding_in_bf16_costs_no_more_than_bf16_itself(
    bf16_family: str, predictions: dict[str, torch.Tensor]
) -> None:
    one, sharded = (predictions[case_name(bf16_family, plan, UNEVEN, "bf16")] for plan in ({}, BF16_PLAN))
    exact = plain_diffusers(bf16_family, UNEVEN)
    assert relative_error(sharded, one) <= BF16_TOLERANCE
    assert relative_error(sharded, exact) <= 1.5 * relative_error(one, exact)
