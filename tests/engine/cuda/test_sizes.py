"""Models of published sizes on 2 to 64 ranks, on fake tensors: see `tests/support/fakes`.

What is shown: no rank sends more than the formulas of the field ask for; weights and activations shrink as the plan
says, and of shared weights as many bytes come as `WeightSizes` tells. In no block does a rank give up memory that a
message still uses: torch's allocator would take more than is predicted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parallel_backend.plan import ParallelPlan
from tests.support.fakes.formulas import PLANS, peak_bytes, sent_bytes
from tests.support.fakes.models import LIBRARIES
from tests.support.fakes.tally import WEIGHTS
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

MORE = 1.02  # times the formulas: tokens do not divide evenly
NEAR = 1e-3  # of the weights: buffers are none
ALONE: dict[str, int] = {}
FEW = 2  # blocks of each kind; with more stages, a block a stage
# The gate has each model whole by ComfyUI's class under one plan, of which one rank is looked at; and one by diffusers'
# class. All others it has of a few blocks of each kind: blocks of a kind are alike, and what a rank keeps and sends is
# a sum over them.
WHOLE = {
    ("comfyui", "flux-dev"): {"ring": 2, "ulysses": 4},
    ("comfyui", "wan-14b"): {"ulysses": 8},
    ("comfyui", "qwen-image"): {"ulysses": 8},
    ("diffusers", "flux-dev"): {"ulysses": 2, "weights": "shared"},
}
QUICK = {
    ("comfyui", "flux-dev"): [ALONE, {"ulysses": 3}],
    ("comfyui", "wan-14b"): [{"cfg": 2, "ulysses": 4}],
    ("comfyui", "qwen-image"): [{"cfg": 2, "ring": 4, "ulysses": 8}],
    ("diffusers", "flux-dev"): [{"ulysses": 8}],
    ("diffusers", "wan-14b"): [{"cfg": 2, "ulysses": 8}],
    ("diffusers", "qwen-image"): [{"cfg": 2, "pipefusion": 4, "patches": 1}, {"cfg": 2, "ulysses": 2}],
}


def cases() -> list[Any]:
    found = []
    for library, models in LIBRARIES.items():
        for name, model in models.items():
            for degrees in PLANS[name]:
                plan, is_quick = ParallelPlan.from_json(degrees), degrees in QUICK[library, name]
                few = max(FEW, -(-plan.pipefusion // len(model.depths)))
                for count in [None, few] if is_quick else [None]:
                    is_of_gate = is_quick if count else degrees == WHOLE.get((library, name))
                    title = f"{library}-{name}-{plan}" + (f"-{count} blocks" if count else "")
                    marks = [] if is_of_gate else [pytest.mark.slow]
                    found.append(pytest.param(library, name, degrees, count, marks=marks, id=title))
    return found


@pytest.fixture(scope="module")
def told(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What was found of the cases that this session runs."""
    folder = tmp_path_factory.mktemp("sizes")
    wanted = running(request, "library", "name", "degrees", "blocks")
    (folder / "cases.json").write_text(json.dumps(wanted))
    ranks.run(1, "cuda.fake_ranks", str(folder / "cases.json"), str(folder / "told.json"), cases=len(wanted))
    return json.loads((folder / "told.json").read_text())


@pytest.mark.parametrize(("library", "name", "degrees", "blocks"), cases())
def test_a_rank_keeps_and_sends_its_share(
    library: str, name: str, degrees: dict[str, int], blocks: int | None, told: dict[str, Any]
) -> None:
    by_rank = told[json.dumps([library, name, degrees, blocks])]
    plan, model = ParallelPlan.from_json(degrees), LIBRARIES[library][name]
    model = model.shortened(blocks) if blocks else model
    for found in by_rank:
        for kind, terms in sent_bytes(model, plan, found["blocks"]).items():
            assert found["sent"].get(kind, 0) <= MORE * sum(terms.values()), (kind, terms)
        assert found["taken"] == found["peak"] <= peak_bytes(model, plan, found["blocks"])
        assert found["weights"] == pytest.approx(found["told"], rel=NEAR)
        if plan.pipefusion == 1:  # of stages, the largest is told; and each of PipeFusion's patches is a forward
            assert found["sent"].get(WEIGHTS, 0) == pytest.approx(found["to_fetch"], rel=NEAR)
    if plan.pipefusion == 1 and not blocks:
        assert {round(found["parameters"] / 1e9, 2) for found in by_rank} == {model.billions}
