"""What a rank is said to keep of the weights, before anything is loaded, is what it then keeps."""

from __future__ import annotations

import itertools
import random

import pytest

from parallel_backend.groups.mesh_layout import stage_ranges
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.sizes import sizes_by_block


def cuts(count: int, degree: int) -> list[list[range]]:
    """Every way to cut blocks into stages."""
    inner = itertools.combinations(range(1, count), degree - 1)
    return [[range(a, b) for a, b in itertools.pairwise((0, *places, count))] for places in inner]


@pytest.mark.parametrize("seed", range(20))
def test_stages_are_as_even_as_can_be_with_the_lightest_first(seed: int) -> None:
    dice = random.Random(seed)
    sizes, degree = [dice.choice([1, 3, 5]) for _ in range(dice.randint(4, 9))], dice.randint(2, 4)

    def weights(stages: list[range]) -> list[int]:
        return [sum(sizes[place] for place in stage) for stage in stages]

    every = [weights(cut) for cut in cuts(len(sizes), degree)]
    lightest_first = [each for each in every if each[0] == min(each)] or every
    found = weights(stage_ranges(sizes, degree))
    assert sum(found) == sum(sizes)
    assert sum(each**2 for each in found) == min(sum(one**2 for one in each) for each in lightest_first)
    assert found in lightest_first


def test_what_no_block_has_is_every_ranks() -> None:
    names = {"embed.weight": 5, "blocks.0.attn.q": 8, "blocks.0.norm": 1, "blocks.1.attn.q": 8, "blocks_norm.w": 2}
    sizes = sizes_by_block(names, ["blocks.0", "blocks.1"])
    assert (sizes.rest, sizes.blocks, sizes.total) == (7, (9, 8), 24)
    assert sizes.count_resident_bytes(ParallelPlan(pipefusion=2)) == [7 + 9, 7 + 8]
