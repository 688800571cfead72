"""ComfyUI's files with weights that are fetched: in every format to the bit what whole ones give, and quantised as they
are; also with an adapter, of another strength, after it is off, under another plan, and when they wait elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallel_backend.plan import HOST, SHARED
from tests.support.cases.files.formats import FORMATS
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

# The gate has the kinds of files: of weights that are plain, that are cast, that are quantised, and in packed blocks.
IN_GATE = (("bf16", SHARED), ("plain fp8", HOST), ("fp8", SHARED), ("gguf", HOST))
CASES = [
    pytest.param(form, kind, marks=[] if (form, kind) in IN_GATE else [pytest.mark.slow])
    for form in ("fp32", "bf16", *FORMATS, "gguf")
    for kind in (SHARED, HOST)
]
PLAN, OTHER = {"ulysses": 2}, {"ring": 2}


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """By form and kind, of each rank, what is equal."""
    cases = [(form, PLAN, OTHER, kind) for form, kind in running(request, "form", "kind")]
    told: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for found in ranks.run(2, "weights.fetched_file_ranks", str(tmp_path_factory.mktemp("fetched-files")), cases):
        for form, _, _, kind, equal in found:
            told.setdefault((form, kind), []).append(equal)
    return told


@pytest.mark.parametrize(("form", "kind"), CASES)
def test_a_file_gives_the_same_bits_with_fetched_weights_and_stays_quantised(
    form: str, kind: str, found: dict[tuple[str, str], list[dict[str, Any]]]
) -> None:
    first, second = found[form, kind]
    assert len(first) > len(second) > 20
    assert not [(rank, what) for rank, equal in enumerate((first, second)) for what in equal if not equal[what]]
