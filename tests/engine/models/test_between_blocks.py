"""Models with code between their blocks that needs all tokens give on ranks what they give in one process. The ranks
share the tokens of the blocks. Likewise, UNets with functions that need the whole picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_backend.models import spec_named
from parallel_backend.plan import ParallelPlan
from tests.support.cases.host import CASES
from tests.support.ranks.pool import RankPool

TOLERANCE = 1e-5
EFFECT = 1e-2  # what the code changes at least
PLANS = [{"ulysses": 2}, {"ring": 2}]
# Of the calls of blocks, the share that ranks share, if not all: of a class whose blocks leave out text that does not
# count, and the code sees it; of one whose first step of two runs whole.
SHARES = {"mochi": 0, "hidream-o1": 0.5, "sdxl-low": 0, "sdxl-narrow": 0}
FIRST_ROWS = {model.model_class: row for row, model in reversed(CASES.items())}


def shares_tokens(model_class: str) -> bool:
    spec = spec_named(model_class)
    return spec is not None and bool(spec.blocks) and not (spec.inside is not None or spec.unshared)


# The plans take turns: what is gathered does not depend on how attention sees all tokens.
ROWS = {
    row: PLANS[place % 2]
    for place, row in enumerate(row for name, row in FIRST_ROWS.items() if shares_tokens(name))
}  # fmt: skip
# Odd sides; bands of unequal height; too few rows for the ranks, or too narrow, to be shared.
UNETS = {
    "sd15": {"ulysses": 2},
    "sd15-controlnet-odd": {"ring": 2, "speeds": [1, 0.4]},
    "sdxl-odd": {"ulysses": 2, "ring": 2},
    "sdxl-low": {"ulysses": 4},
    "sdxl-narrow": {"ring": 2},
}


@pytest.fixture(scope="module")
def found(ranks: RankPool, comfyui: Path) -> dict[str, list[float]]:
    found = dict[str, list[float]]()
    for world in (2, 4):
        rows = {
            row: plan for row, plan in {**ROWS, **UNETS}.items() if ParallelPlan.from_json(plan).world_size == world
        }
        found |= ranks.run(world, "host.between_ranks", rows, cases=len(rows))[0]
    return found


@pytest.mark.parametrize("row", [*ROWS, *UNETS])
def test_code_between_the_blocks_sees_all_tokens(row: str, found: dict[str, list[float]]) -> None:
    error, effect, share = found[row]
    assert error <= TOLERANCE
    assert effect >= EFFECT, "the code does nothing"
    assert share == SHARES.get(row, 1), "of the calls of blocks, the ranks share"
