"""Models of published sizes on 2 to 64 ranks, on fake tensors: see `tests/support/fakes`.

What is shown: ranks meet in their collectives and messages; no rank sends more than the formulas of the field ask for;
weights and activations shrink as the plan says, and of shared weights as many bytes come as `WeightSizes` tells. In no
block does a rank give up memory that a message still uses: torch's allocator would take more than is predicted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_backend.plan import ParallelPlan
from tests.support.fakes.formulas import PLANS, peak_bytes, sent_bytes
from tests.support.fakes.models import LIBRARIES
from tests.support.fakes.tally import RECEIVE, SEND, WEIGHTS, Exchange, mismatches
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

MORE = 1.02  # times the formulas: tokens do not divide evenly
NEAR = 1e-3  # of the weights: buffers are none
ALONE: dict[str, int] = {}
FEW = 2  # blocks of each kind; with more stages, a block a stage
# The gate has each model whole by ComfyUI's class under one plan, of which one rank is looked at; and one by diffusers'
# class. All others it has of a few blocks of each kind: blocks of a kind are alike, and what a rank keeps and sends is
# a sum over them. Ranks that meet in a few blocks meet in all.
WHOLE = {
    ("comfyui", "flux-dev"): {"ring": 2, "ulysses": 4},
    ("comfyui", "wan-14b"): {"ulysses": 8},
    ("comfyui", "qwen-image"): {"ulysses": 8},
    ("diffusers", "flux-dev"): {"ulysses": 2, "weights": "shared"},
}
QUICK = {
    ("figures", "comfyui", "flux-dev"): [ALONE, {"ulysses": 3}],
    ("figures", "comfyui", "wan-14b"): [{"cfg": 2, "ulysses": 4}],
    ("figures", "comfyui", "qwen-image"): [{"cfg": 2, "ring": 4, "ulysses": 8}],
    ("figures", "diffusers", "flux-dev"): [{"ulysses": 8}],
    ("figures", "diffusers", "wan-14b"): [{"cfg": 2, "ulysses": 8}],
    ("figures", "diffusers", "qwen-image"): [{"cfg": 2, "pipefusion": 4, "patches": 1}, {"cfg": 2, "ulysses": 2}],
    ("meeting", "comfyui", "flux-dev"): [{"ring": 2, "ulysses": 8}, {"ulysses": 3}],
    ("meeting", "comfyui", "wan-14b"): [
        {"cfg": 2, "ring": 4, "ulysses": 8},
        {"cfg": 2, "pipefusion": 2, "ulysses": 2, "weights": "shared"},
    ],
    ("meeting", "diffusers", "flux-dev"): [{"pipefusion": 4, "ulysses": 2}],
    ("meeting", "diffusers", "qwen-image"): [{"cfg": 2, "ulysses": 8}],
}


def cases(what: str) -> list[Any]:
    found = []
    for library, models in LIBRARIES.items():
        for name, model in models.items():
            what_of = (what, library, name)
            for degrees in PLANS[name]:
                if what == "meeting" and not degrees:
                    continue
                plan = ParallelPlan.from_json(degrees)
                few, is_quick = max(FEW, -(-plan.pipefusion // len(model.depths))), degrees in QUICK.get(what_of, [])
                blocks = [few] if what == "meeting" else [None, few] if is_quick else [None]
                for count in blocks:
                    is_of_gate = is_quick if count else degrees == WHOLE.get((library, name))
                    title = f"{library}-{name}-{plan}" + (f"-{count} blocks" if count else "")
                    marks = [] if is_of_gate else [pytest.mark.slow]
                    found.append(pytest.param(what, library, name, degrees, count, marks=marks, id=title))
    return found


@pytest.fixture(scope="module")
def told(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What was found of the cases that this session runs."""
    folder = tmp_path_factory.mktemp("sizes")
    wanted = running(request, "what", "library", "name", "degrees", "blocks")
    (folder / "cases.json").write_text(json.dumps(wanted))
    ranks.run(1, "cuda.fake_ranks", str(folder / "cases.json"), str(folder / "told.json"), cases=len(wanted))
    return json.loads((folder / "told.json").read_text())


@pytest.mark.parametrize(("what", "library", "name", "degrees", "blocks"), cases("meeting"))
def test_ranks_meet_in_every_collective(
    what: str, library: str, name: str, degrees: dict[str, int], blocks: int | None, told: dict[str, Any]
) -> None:
    assert told[json.dumps([what, library, name, degrees, blocks])] == []


@pytest.mark.parametrize(("what", "library", "name", "degrees", "blocks"), cases("figures"))
def test_a_rank_keeps_and_sends_its_share(
    what: str, library: str, name: str, degrees: dict[str, int], blocks: int | None, told: dict[str, Any]
) -> None:
    by_rank = told[json.dumps([what, library, name, degrees, blocks])]
    plan, model = ParallelPlan.from_json(degrees), LIBRARIES[library][name]
    model = model.shortened(blocks) if blocks else model
    size = next(iter(model.sizes))
    for found in by_rank:
        for kind, terms in sent_bytes(model, size, plan, found["blocks"]).items():
            assert found["sent"].get(kind, 0) <= MORE * sum(terms.values()), (kind, terms)
        assert found["taken"] == found["peak"] <= peak_bytes(model, size, plan, found["blocks"])
        assert found["weights"] == pytest.approx(found["told"], rel=NEAR)
        if plan.pipefusion == 1:  # of stages, the largest is told; and each of PipeFusion's patches is a forward
            assert found["sent"].get(WEIGHTS, 0) == pytest.approx(found["to fetch"], rel=NEAR)
    if plan.pipefusion == 1 and not blocks:
        assert {round(found["parameters"] / 1e9, 2) for found in by_rank} == {model.billions}


def exchange(kind: str, rank: int, shape: tuple[int, ...], **more: Any) -> Exchange:
    return Exchange(kind, "1", (0, 1), shape, torch.bfloat16, 0, rank, **more)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([exchange("all_gather", 0, (4, 8))], []),
        ([exchange("all_gather", 0, (4, 8))], [exchange("all_gather", 1, (3, 8))]),
        ([exchange("all_gather", 0, (4, 8))], [exchange("all_reduce", 1, (4, 8))]),
        (
            [exchange("all_to_all", 0, (8,), to=(2, 2), of=(2, 3))],
            [exchange("all_to_all", 1, (8,), to=(2, 2), of=(2, 2))],
        ),
        ([exchange(SEND, 0, (4, 8), peer=1)], [exchange(RECEIVE, 1, (4, 9), peer=0)]),
        ([exchange(SEND, 0, (4, 8), peer=1)], [exchange(SEND, 1, (4, 8), peer=0)]),
    ],
    ids=["one is missing", "lengths", "kinds", "shares", "message", "nobody receives"],
)
def test_ranks_that_do_not_meet_are_found(one: list[Exchange], other: list[Exchange]) -> None:
    assert list(mismatches({0: one, 1: other}))
