"""Every family under every plan equals one process on plain diffusers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from parallel_backend.models import spec_for
from tests.support.cases.families import FAMILIES, UNEVEN
from tests.support.ranks.pool import RankPool

TOLERANCE = 1e-5
PLANS = [
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
TENSOR_PLANS = [{"tp": 2}, {"tp": 4}, {"tp": 2, "ulysses": 2}, {"tp": 2, "ring": 2}, {"tp": 2, "cfg": 2}]
BF16_PLANS = [{"ulysses": 2}]
BF16_TENSOR_PLANS = [{"tp": 2}]
BF16_TOLERANCE = 2e-2


def plans_of(family: str, plans: list[dict[str, int]], tensor_plans: list[dict[str, int]]) -> list[dict[str, int]]:
    return plans + (tensor_plans if spec_for(FAMILIES[family].model_class).tensor_parallel else [])


CASES = [
    (family, plan, shape)
    for family in FAMILIES
    for plan in plans_of(family, PLANS, TENSOR_PLANS)
    for shape in FAMILIES[family].shapes
]
BF16_CASES = [(family, plan) for family in FAMILIES for plan in plans_of(family, BF16_PLANS, BF16_TENSOR_PLANS)]
WANTED = [(*case, "fp32") for case in CASES]
WANTED += [(family, plan, UNEVEN, "bf16") for family, plan in BF16_CASES + [(family, {}) for family in FAMILIES]]


def world_size(plan: dict[str, int]) -> int:
    return math.prod(plan.values())


def case_name(family: str, plan: dict[str, int], shape: str, dtype: str = "fp32") -> str:
    return f"{family} | {json.dumps(plan)} | {shape} | {dtype}"


def plain_diffusers(family: str, shape: str) -> torch.Tensor:
    """What one process on plain diffusers predicts in fp32."""
    model = FAMILIES[family].build()
    with torch.inference_mode():
        return FAMILIES[family].reference(model, *FAMILIES[family].inputs(*FAMILIES[family].shapes[shape]))


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.float() - expected.float()).norm() / expected.float().norm()).item()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {name: family.save(root / name) for name, family in FAMILIES.items()}


@pytest.fixture(scope="module")
def predictions(
    folders: dict[str, Path], ranks: RankPool, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """All cases: rank 0's prediction by case name."""
    return run_cases(WANTED, folders, ranks, tmp_path_factory.mktemp("predictions"))


def run_cases(
    wanted: list[tuple[str, dict[str, int], str, str]], folders: dict[str, Path], ranks: RankPool, root: Path
) -> dict[str, torch.Tensor]:
    """Cases of family, plan, shape and dtype, all of a world size at once: rank 0's prediction by case name."""
    results: dict[str, torch.Tensor] = {}
    for world in sorted({world_size(plan) for _, plan, *_ in wanted}):
        cases = [
            {
                "name": case_name(family, plan, shape, dtype),
                "family": family,
                "folder": str(folders[family]),
                "plan": plan,
                "shape": FAMILIES[family].shapes[shape],
                "dtype": dtype,
            }
            for family, plan, shape, dtype in wanted
            if world_size(plan) == world
        ]
        (root / "cases.json").write_text(json.dumps(cases))
        out = root / f"world{world}.safetensors"
        ranks.run(world, "model_ranks", str(root / "cases.json"), str(out))
        results.update(load_file(out))
    return results


@pytest.mark.parametrize(("family", "plan", "shape"), CASES, ids=lambda value: str(value))
def test_sharded_prediction_equals_plain_diffusers(
    family: str, plan: dict[str, int], shape: str, predictions: dict[str, torch.Tensor]
) -> None:
    expected = plain_diffusers(family, shape)
    got = predictions[case_name(family, plan, shape)]
    assert got.shape == expected.shape
    assert relative_error(got, expected) <= TOLERANCE


@pytest.mark.parametrize(("family", "plan"), BF16_CASES, ids=lambda value: str(value))
def test_sharding_in_bf16_costs_no_more_than_bf16_itself(
    family: str, plan: dict[str, int], predictions: dict[str, torch.Tensor]
) -> None:
    one, sharded = (predictions[case_name(family, degrees, UNEVEN, "bf16")] for degrees in ({}, plan))
    exact = plain_diffusers(family, UNEVEN)
    assert relative_error(sharded, one) <= BF16_TOLERANCE
    assert relative_error(sharded, exact) <= 1.5 * relative_error(one, exact)
