"""What a rank has of weights that are fetched, at rest and while it reads them, is what was told before they were read.

Of files in the dtype that is computed in, and in another.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from parallel_backend.plan import HOST, SHARED, WHOLE, ParallelPlan
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

Plan = dict[str, Any]
ULYSSES = {"ulysses": 2}
PLANS: list[Plan] = [
    {**ULYSSES, "weights": SHARED},
    {**ULYSSES, "weights": HOST},
    {**ULYSSES, "weights": SHARED, "weight_blocks": 4},
    {**ULYSSES, "weights": HOST, "weight_blocks": 1},
    {"pipefusion": 2, "weights": HOST},
    {**ULYSSES, "weights": WHOLE},
]
IN_GATE = [("diffusers", "fp32", 0), ("comfyui", "bf16", 0), ("diffusers", "bf16", 2), ("comfyui", "fp32", 1)]
CASES = [
    pytest.param(library, dtype, plan, marks=[] if (library, dtype, place) in IN_GATE else [pytest.mark.slow])
    for library in ("diffusers", "comfyui")
    for dtype in ("fp32", "bf16")
    for place, plan in enumerate(PLANS)
]
SPARE = 3_000_000  # bytes, of what is no weight: Python's, gloo's
AROUND = 0.1  # of what is read: Linux maps the pages around one, too


@pytest.fixture(scope="module")
def told(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, int]]]:
    """By case, what each rank found."""
    root = tmp_path_factory.mktemp("fetched-memory")
    (root / "cases.json").write_text(json.dumps(running(request, "library", "dtype", "plan")))
    ranks.run(2, "weights.fetched_memory_ranks", str(root), str(root / "cases.json"), str(root / "found"))
    found: dict[str, list[dict[str, int]]] = {}
    for rank in range(2):
        for *case, measured in json.loads((root / f"found.{rank}").read_text()):
            found.setdefault(str(case), []).append(measured)
    return found


@pytest.mark.parametrize(("library", "dtype", "plan"), CASES, ids=str)
def test_a_rank_keeps_and_reads_what_was_told_and_loads_in_little_more(
    library: str, dtype: str, plan: Plan, told: dict[str, list[dict[str, int]]]
) -> None:
    parsed = ParallelPlan.from_json(plan)
    by_rank = told[str([library, dtype, plan])]
    stored = 0.5 if dtype == "bf16" else 1.0  # of the bytes that they take in fp32
    for found in by_rank:
        assert found["live"] == pytest.approx(found["kept"], rel=1e-3)
        assert found["said"] == pytest.approx(found["live"], rel=1e-3), "what the status tells"
        assert found["peak"] <= found["rest"] + found["largest"] + SPARE
        own = stored * found["fetched"] / parsed.replicas
        assert found["read"] <= (1 + AROUND) * own + SPARE * (own > 0)
        if own:
            assert found["read"] >= own / 2, "what is measured by"
        if parsed.replicas > 1:  # else a rank has the host's copy by itself
            assert found["peak"] <= found["kept"] + found["largest"] + SPARE
    if parsed.weights == HOST and parsed.replicas > 1:
        once = sum(found["of the host"] for found in by_rank)
        assert once == pytest.approx(by_rank[0]["fetched"], rel=0.02), "one copy for both"
