"""ComfyUI's ControlNets whose tokens are shared give on every rank what they give in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cases.host.controlnets import CONTROLNETS
from tests.support.ranks.pool import RankPool

TOLERANCE = 1e-5
PLANS = [{"ulysses": 2}, {"ring": 2}, {"ulysses": 2, "speeds": [1, 0.4]}, {"ring": 2, "ulysses": 2}]


@pytest.fixture(scope="module")
def errors(ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    root = tmp_path_factory.mktemp("controlnets")
    found: dict[str, float] = {}
    for world in (2, 4):
        out = root / f"{world}.json"
        ranks.run(world, "networks.controlnet_ranks", json.dumps(PLANS), str(out), cases=len(CONTROLNETS))
        found |= json.loads(out.read_text())
    return found


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", CONTROLNETS)
def test_a_controlnet_on_ranks_equals_itself(name: str, plan: dict, errors: dict[str, float]) -> None:
    assert errors[f"{name} | {json.dumps(plan)}"] <= TOLERANCE
