"""Every family under every plan equals one process on plain diffusers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.families import FAMILIES

REPOSITORY = Path(__file__).resolve().parents[1]
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
SHAPES = {
    "square": (2, 16, 16),
    "odd batch, not square, tokens that do not divide": (3, 10, 14),
    "a single image": (1, 6, 10),
}


def world_size(plan: dict[str, int]) -> int:
    return math.prod(plan.values())


def case_name(family: str, plan: dict[str, int], shape: str) -> str:
    return f"{family} | {json.dumps(plan)} | {shape}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {name: family.save(root / name) for name, family in FAMILIES.items()}


@pytest.fixture(scope="module")
def predictions(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """All cases, one torchrun a world size: rank 0's prediction by case name."""
    root = tmp_path_factory.mktemp("predictions")
    results: dict[str, torch.Tensor] = {}
    for world in sorted({world_size(plan) for plan in PLANS}):
        cases = [
            {
                "name": case_name(family, plan, shape),
                "family": family,
                "folder": str(folders[family]),
                "plan": plan,
                **dict(zip(("batch", "height", "width"), SHAPES[shape], strict=True)),
            }
            for family in FAMILIES
            for plan in PLANS
            for shape in SHAPES
            if world_size(plan) == world
        ]
        (root / "cases.json").write_text(json.dumps(cases))
        out = root / f"world{world}.safetensors"
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "-m", "tests.ranks"]
        run = subprocess.run(
            [sys.executable, *launch, str(root / "cases.json"), str(out)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert run.returncode == 0, run.stderr[-4000:]
        results.update(load_file(out))
    return results


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("plan", PLANS, ids=json.dumps)
@pytest.mark.parametrize("family", FAMILIES)
def test_sharded_prediction_equals_plain_diffusers(
    family: str, plan: dict[str, int], shape: str, predictions: dict[str, torch.Tensor]
) -> None:
    model = FAMILIES[family].build()
    with torch.inference_mode():
        expected = FAMILIES[family].reference(model, *FAMILIES[family].inputs(*SHAPES[shape]))
    got = predictions[case_name(family, plan, shape)]
    assert got.shape == expected.shape
    assert (got - expected).norm() / expected.norm() <= TOLERANCE
