"""ComfyUI's ControlNets, and models with networks that nodes run inside of them, give on ranks what they give in one
process. The ranks share the networks' tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cases.host.controlnets import CONTROLNETS
from tests.support.cases.host.networks import NETWORKS
from tests.support.ranks.pool import RankPool

TOLERANCE = 1e-5
EFFECT = 1e-2  # what a network changes at least
PLANS = [{"ulysses": 2}, {"ring": 2}, {"ulysses": 2, "speeds": [1, 0.4]}, {"ring": 2, "ulysses": 2}]
# The largest part of a network's tokens that a rank computes, by the number of ranks. Of the first tokens of a longer
# stream, the first rank has more.
SHARES = {2: 0.55, 4: 0.3}
SHARES_OF_FIRST = {2: 0.8, 4: 0.4}
Found = dict[str, list[list[float]]]  # by row and plan, what each rank found


@pytest.fixture(scope="module")
def found(ranks: RankPool, comfyui: Path) -> Found:
    found: Found = {}
    for world in (2, 4):
        by_rank = ranks.run(world, "host.network_ranks", PLANS, cases=len(CONTROLNETS) + len(NETWORKS))
        found |= {name: [each[name] for each in by_rank] for name in by_rank[0]}
    return found


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", CONTROLNETS)
def test_a_controlnet_on_ranks_equals_itself(name: str, plan: dict, found: Found) -> None:
    assert max(error for (error,) in found[f"{name} | {json.dumps(plan)}"]) <= TOLERANCE


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_with_a_network_inside_equals_itself(name: str, plan: dict, found: Found) -> None:
    error, _ = found[f"{name} | {json.dumps(plan)}"][0]
    assert error <= TOLERANCE
    assert found[name][0][0] >= EFFECT, "the network does nothing"


@pytest.mark.parametrize("plan", [each for each in PLANS if "speeds" not in each], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_each_rank_computes_its_tokens_of_a_network(name: str, plan: dict, found: Found) -> None:
    share = max(share for *_, share in found[f"{name} | {json.dumps(plan)}"])
    shares = SHARES_OF_FIRST if NETWORKS[name].is_longer else SHARES
    assert share <= shares[plan.get("ring", 1) * plan.get("ulysses", 1)]
