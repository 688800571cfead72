"""Models with code between their blocks that needs all tokens give on ranks what they give in one process. The ranks
share the tokens of the blocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallel_backend.models import spec_named
from tests.support.cases.host import CASES
from tests.support.ranks.pool import RankPool

TOLERANCE = 1e-5
EFFECT = 1e-2  # what the code changes at least
PLANS = [{"ulysses": 2}, {"ring": 2}]
WHOLE = ("mochi",)  # its blocks leave out text that does not count, and the code sees it
FIRST_ROWS = {model.model_class: row for row, model in reversed(CASES.items())}


def shares_tokens(model_class: str) -> bool:
    spec = spec_named(model_class)
    return spec is not None and bool(spec.blocks) and not (spec.inside or spec.unshared)


# The plans take turns: what is gathered does not depend on how attention sees all tokens.
ROWS = {
    row: PLANS[place % 2]
    for place, row in enumerate(row for name, row in FIRST_ROWS.items() if shares_tokens(name))
}  # fmt: skip


@pytest.fixture(scope="module")
def found(ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    root = tmp_path_factory.mktemp("between")
    (root / "rows.json").write_text(json.dumps(ROWS))
    ranks.run(2, "host.between_ranks", str(root / "rows.json"), str(root / "out.json"), cases=len(ROWS))
    return json.loads((root / "out.json").read_text())


@pytest.mark.parametrize("row", ROWS)
def test_code_between_the_blocks_sees_all_tokens(row: str, found: dict[str, list[float]]) -> None:
    error, effect, share = found[row]
    assert error <= TOLERANCE
    assert effect >= EFFECT, "the code does nothing"
    assert share == (0 if row in WHOLE else 1), "of the calls of blocks, the ranks share"
