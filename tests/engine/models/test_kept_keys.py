"""Ranks share the image's tokens of a model that keeps its text's keys and values from step to step (HiDream-O1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

TOLERANCE = 1e-5
STEPS = 3
# By number of ranks, plans that these take one after the other. Under cfg, ranks have kept the keys of other prompts.
PLANS: dict[int, list[dict[str, Any]]] = {
    2: [{"cfg": 2}, {"ulysses": 2}, {"ring": 2, "speeds": [1, 0.4]}, {"ulysses": 2, "speeds": [0.001, 1]}, {"ring": 2}],
    4: [
        {"cfg": 2, "ulysses": 2},
        {"ulysses": 2, "ring": 2},
        {"cfg": 2, "ring": 2, "speeds": [1, 0.4, 1, 1]},
        {"ring": 4},
        {"ulysses": 4},
    ],
}
# The gate has each way to exchange tokens, and unlike devices; on four ranks, both ways together.
OF_THE_GATE = {2: 4, 4: 2}
# By sampling, the tokens that each step computes anew, and the prompts; none if the model keeps none, which it does for
# two prompts at a time.
FRESH = {
    "text": (16, 2),
    "another prompt": (16, 2),
    "reference": (40, 2),
    "another reference": (40, 2),
    "two references with one text": (40, 2),
    "more prompts than are kept": (0, 0),
}
CASES = [
    pytest.param(world, place, marks=[] if place < OF_THE_GATE[world] else [pytest.mark.slow], id=json.dumps(plan))
    for world, plans in PLANS.items()
    for place, plan in enumerate(plans)
]


class Found(NamedTuple):
    """By sampling, the largest relative error of a call, and by rank the tokens that its first block was given, call by
    call."""

    errors: dict[str, float]
    seen: list[dict[str, list[int]]]


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[int, int], Found]:
    root, found = tmp_path_factory.mktemp("kept"), {}
    wanted = running(request, "world", "place")
    for world in sorted({world for world, _ in wanted}):
        plans = PLANS[world][: 1 + max(place for own, place in wanted if own == world)]
        (root / "plans.json").write_text(json.dumps(plans))
        ranks.run(world, "host.kept_ranks", str(root / "plans.json"), str(STEPS), str(root / "out.json"))
        made = json.loads((root / "out.json").read_text())
        found |= {(world, place): Found(**each) for place, each in enumerate(made)}
    return found


@pytest.mark.parametrize(("world", "place"), CASES)
def test_every_step_of_a_sampling_equals_the_plain_class(
    world: int, place: int, found: dict[tuple[int, int], Found]
) -> None:
    errors = found[world, place].errors
    assert errors.keys() == FRESH.keys()
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize(("world", "place"), CASES)
def test_from_the_second_step_on_ranks_share_the_tokens(
    world: int, place: int, found: dict[tuple[int, int], Found]
) -> None:
    for name, (fresh, prompts) in FRESH.items():
        if not fresh:
            continue
        by_rank = [seen[name] for seen in found[world, place].seen]
        later = [tokens[len(tokens) // STEPS :] for tokens in by_rank]
        assert sum(map(sum, later)) == (STEPS - 1) * prompts * fresh, name
        assert min(min(tokens[: len(tokens) // STEPS]) for tokens in by_rank) > fresh, "the first step runs whole"
