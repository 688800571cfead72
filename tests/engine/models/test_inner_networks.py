"""Models with networks that nodes run inside of them give on ranks what they give in one process. The ranks share the
networks' tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cases.host.networks import NETWORKS
from tests.support.ranks.pool import RankPool

TOLERANCE = 1e-5
EFFECT = 1e-2  # what a network changes at least
PLANS = [{"ulysses": 2}, {"ring": 2}, {"ulysses": 2, "speeds": [1, 0.4]}, {"ring": 2, "ulysses": 2}]
# The largest part of a network's tokens that a rank computes, by the number of ranks. Of the first tokens of a longer
# stream, the first rank has more.
SHARES = {2: 0.55, 4: 0.3}
SHARES_OF_FIRST = {2: 0.8, 4: 0.4}


@pytest.fixture(scope="module")
def found(ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    root = tmp_path_factory.mktemp("networks")
    found: dict[str, list[float]] = {}
    for world in (2, 4):
        out = root / f"{world}.json"
        ranks.run(world, "networks.inner_network_ranks", json.dumps(PLANS), str(out), cases=len(NETWORKS))
        found |= json.loads(out.read_text())
    return found


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_with_a_network_inside_equals_itself(name: str, plan: dict, found: dict[str, list[float]]) -> None:
    error, _ = found[f"{name} | {json.dumps(plan)}"]
    assert error <= TOLERANCE
    assert found[name][0] >= EFFECT, "the network does nothing"


@pytest.mark.parametrize("plan", [each for each in PLANS if "speeds" not in each], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_each_rank_computes_its_tokens_of_a_network(name: str, plan: dict, found: dict[str, list[float]]) -> None:
    _, share = found[f"{name} | {json.dumps(plan)}"]
    shares = SHARES_OF_FIRST if NETWORKS[name].is_longer else SHARES
    assert share <= shares[plan.get("ring", 1) * plan.get("ulysses", 1)]
