"""ComfyUI's own VAEs on several ranks give what they give in one process, and a rank needs its share of the memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.cases.vaes.host_vaes import MEASURED, VAES
from tests.support.host.graphs import relative_error
from tests.support.ranks.pool import RankPool

RANKS = 4  # of which the first and the last have one neighbour, as both of two have, and the others have two
TOLERANCE = 1e-5
TILES = "minimax-h3"  # whose tiles each are computed by one rank, as one process does
SHARE = 0.33  # of one rank's memory: norms, border rows and attention's keys take a little more than a fourth
# Each kind of VAE in one direction, in turn.
MEASURED_IN = {name: ("decode", "encode")[place % 2] for place, name in enumerate(MEASURED)}

Run = tuple[dict[str, torch.Tensor], list[dict[str, dict[str, int]]]]


@pytest.fixture(scope="module")
def runs(ranks: RankPool, comfyui: Path) -> dict[int, Run]:
    """By world size: what rank 0 got, and the most bytes that each rank held, by VAE and direction."""
    by_world = {world: ranks.run(world, "host.host_vae_ranks", MEASURED_IN) for world in (1, RANKS)}
    return {world: (by_rank[0][1], [held for held, _ in by_rank]) for world, by_rank in by_world.items()}


@pytest.mark.parametrize("name", VAES)
@pytest.mark.parametrize("world", (1, RANKS))
def test_split_rows_give_what_the_class_gives_in_one_process(world: int, name: str, runs: dict[int, Run]) -> None:
    plain = {
        call.replace("plain ", ""): result for call, result in runs[1][0].items() if call.startswith(f"{name}: plain ")
    }
    assert len(plain) == len(VAES[name].calls()) >= 4
    errors = {call: relative_error(runs[world][0][call], expected) for call, expected in plain.items()}
    assert max(errors.values()) <= (0 if name == TILES else TOLERANCE), errors
    assert all(expected.std() > 0.05 for expected in plain.values()), "what is all grey says nothing"


@pytest.mark.parametrize("world", (1, RANKS))
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


@pytest.mark.parametrize("name", MEASURED)
def test_each_rank_needs_its_share_of_the_memory(name: str, runs: dict[int, Run]) -> None:
    ((_, [one]), (_, held)) = runs[1], runs[RANKS]
    assert max(rank[name]["most"] for rank in held) < SHARE * one[name]["most"]
