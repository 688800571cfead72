"""ComfyUI's own VAEs on several ranks give what they give in one process, and a rank needs its share of the memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.cases.vaes.host_vaes import MEASURED, VAES
from tests.support.cases.vaes.vae_cases import relative_error
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

# Of four ranks, the first and the last have one neighbour, as both of two have, and the others have two.
WORLDS = [1, *(pytest.param(world, marks=pytest.mark.slow) for world in (2, 3)), 4]
TOLERANCE = 1e-5
TILES = "minimax-h3"  # whose tiles each are computed by one rank, as one process does
# Of one rank's memory. Norms, border rows and attention's keys and values take a little more than a rank's share.
SHARES = {2: 0.6, 4: 0.33}
DIRECTIONS = ("decode", "encode")
# The gate has each kind of VAE on four ranks in one direction, in turn.
MEASURED_CASES = [
    pytest.param(world, name, direction, marks=[] if world == 4 and is_in_turn else [pytest.mark.slow])
    for world in SHARES
    for place, name in enumerate(MEASURED)
    for direction, is_in_turn in zip(DIRECTIONS, (place % 2 == 0, place % 2 == 1), strict=True)
]

Run = tuple[dict[str, torch.Tensor], list[dict[str, dict[str, int]]]]


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Run]:
    """By world size: what rank 0 got, and the most bytes that each rank held, by VAE and direction."""
    root = tmp_path_factory.mktemp("host-vaes")
    runs, measured = {}, running(request, "world", "name", "direction")
    for world in {1} | {world for (world,) in running(request, "world")}:
        out = root / f"world{world}"
        by_name: dict[str, set[str]] = {}
        for of, name, direction in measured:
            if world in (1, of):
                by_name.setdefault(name, set()).add(direction)
        ranks.run(
            world, "host.host_vae_ranks", str(out), json.dumps({name: [*found] for name, found in by_name.items()})
        )
        held = [json.loads(Path(f"{out}.{rank}.json").read_text()) for rank in range(world)]
        runs[world] = load_file(f"{out}.safetensors"), held
    return runs


@pytest.mark.parametrize("name", VAES)
@pytest.mark.parametrize("world", WORLDS)
def test_split_rows_give_what_the_class_gives_in_one_process(world: int, name: str, runs: dict[int, Run]) -> None:
    plain = {
        call.replace("plain ", ""): result for call, result in runs[1][0].items() if call.startswith(f"{name}: plain ")
    }
    assert len(plain) == len(VAES[name].calls()) >= 4
    errors = {call: relative_error(runs[world][0][call], expected) for call, expected in plain.items()}
    assert max(errors.values()) <= (0 if name == TILES else TOLERANCE), errors
    assert all(expected.std() > 0.05 for expected in plain.values()), "what is all grey says nothing"


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_compute_a_vaes_own_tiles_in_turn(world: int, runs: dict[int, Run]) -> None:
    """All of them look at the same places whether the call was given up. Rank 0 computes tiles of unlike sizes."""
    (_, [one]), (_, held) = runs[1], runs[world]
    *in_turn, cut = VAES[TILES].calls()
    assert [rank[TILES].get(f"tiles: {cut}", 0) for rank in held] == [2, *[0] * (world - 1)]
    for call in in_turn:
        tiles = [rank[TILES].get(f"tiles: {call}", 0) for rank in held]
        whole = one[TILES][f"tiles: {call}"]
        assert tiles == [len(range(rank, whole, world)) for rank in range(world)], call
        assert {rank[TILES][f"checks: {call}"] for rank in held} == {-(-whole // world)}, call
    assert whole == 4, "two tiles of each of two clips"


@pytest.mark.parametrize(("world", "name", "direction"), MEASURED_CASES)
def test_each_rank_needs_its_share_of_the_memory(world: int, name: str, direction: str, runs: dict[int, Run]) -> None:
    ((_, [one]), (_, held)) = runs[1], runs[world]
    most = max(rank[name][direction] for rank in held)
    assert most < SHARES[world] * one[name][direction], most / one[name][direction]
