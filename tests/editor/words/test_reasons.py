"""Each reason for an automatic plan names the rule that decided."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from parallel_backend.costs.choose import Tried, list_plans
from parallel_backend.costs.forward import Work
from parallel_backend.costs.roofline import Prediction
from parallel_backend.plan import ParallelPlan
from tests.support.host.mounted import packages

ONE, CFG, ULYSSES, RING = ParallelPlan(), ParallelPlan(cfg=2), ParallelPlan(ulysses=2), ParallelPlan(ring=2)
GUIDED, SINGLE, FOUR = Work(2, has_branches=True), Work(1), Work(4)


def predict(plan: ParallelPlan, seconds: float, fits: bool = True, alone: bool = False) -> Prediction:
    return Prediction(plan, seconds, 0.0, 10, fits, is_alone=alone)


@pytest.fixture
def pack(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The pack's modules by name."""
    for name, package in packages().items():
        monkeypatch.setitem(sys.modules, name, package)
    return lambda name: importlib.import_module(f"pack.nodes.{name}")


ALONE = predict(ONE, 2.0, alone=True)
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "guidance": (["guidance_first"], {"plan": CFG, "work": GUIDED}),
    "no guidance": (["one_pass", "ulysses"], {"plan": ULYSSES, "work": SINGLE}),
    "calls whose rows are mixed": (["ulysses"], {"plan": ULYSSES, "work": Work(2, calls=2)}),
    "three parts": (["uneven", "ulysses"], {"plan": ULYSSES, "work": Work(3, has_branches=True)}),
    "coupled": (["coupled", "ulysses"], {"plan": ULYSSES, "work": GUIDED, "couples": True}),
    "images": (["rows_apart"], {"plan": ParallelPlan(dp=4), "work": FOUR, "ranks": 4}),
    "images with guidance": (
        ["guidance_first", "rows_apart"],
        {"plan": ParallelPlan(dp=2, cfg=2), "work": Work(4, has_branches=True), "ranks": 4},
    ),
    "no tokens to share": (["batch_only"], {"plan": ParallelPlan(dp=2), "work": SINGLE, "heads": 0}),
    "nothing to share": (["idle_ranks"], {"found": [ALONE], "work": SINGLE}),
    "one is faster": (["one_faster"], {"found": [ALONE, predict(ULYSSES, 3.0)], "work": SINGLE}),
    "one is tried": ([], {"found": [ALONE, predict(ULYSSES, 1.5)], "work": SINGLE}),
    "only one fits": (["fuller_lacks"], {"found": [ALONE, predict(ULYSSES, 1.5, fits=False)], "work": SINGLE}),
    "two of four are faster": (
        ["some_faster"],
        {
            "found": [predict(ParallelPlan(dp=4), 2.0), predict(ParallelPlan(cfg=2, ulysses=2), 3.0)],
            "work": GUIDED,
            "ranks": 4,
        },
    ),
    "ring though heads divide": (
        ["one_pass", "ring"],
        {"found": [predict(RING, 1.0), predict(ULYSSES, 1.2)], "work": SINGLE, "heads": 2},
    ),
    "too few heads": (["one_pass", "ring_heads"], {"plan": RING, "work": SINGLE, "heads": 1}),
    "uneven heads": (["one_pass", "ring_uneven"], {"plan": RING, "work": SINGLE, "heads": 3}),
    "another rule forbids ulysses": (["one_pass", "ring"], {"plan": RING, "work": SINGLE, "heads": 8}),
    "both share tokens": (
        ["one_pass", "ulysses", "ring_heads"],
        {"plan": ParallelPlan(ulysses=2, ring=2), "work": SINGLE, "heads": 2, "ranks": 4},
    ),
}
RULES: dict[str, tuple[Prediction, Tried | None]] = {
    "fastest_of": (predict(CFG, 1.0), None),
    "fastest_run": (predict(CFG, 1.0).replace_seconds(2.0), None),
    "tried": (predict(RING, 1.05), (2, 3)),
    "least_of": (predict(CFG, 1.0, fits=False), None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_reason_is_that_of_its_branch(case: str, pack: Any) -> None:
    keys, given = CASES[case]
    found, ranks, heads = given.get("found", []), given.get("ranks", 2), given.get("heads", 8)
    plan = found[0].plan if found else given["plan"]
    said = pack("costs.reasons").explain_work(plan, found, given["work"], ranks, heads, given.get("couples", False))
    assert [each.key for each in said] == keys
    assert all("{" not in each.text for each in said)


def test_two_heads_on_two_ranks_are_never_called_uneven(pack: Any) -> None:
    """Nor are any heads that divide: the order of plans takes Ulysses for these."""
    for heads, ranks in ((2, 2), (4, 4), (24, 8)):
        plan = list_plans(ranks, 1, lambda plan, heads=heads: plan.check_model(heads), branches=False, heads=heads)[0]
        said = pack("costs.reasons").explain_tokens(plan, heads)
        assert [each.key for each in said] == ["ulysses"]


@pytest.mark.parametrize("key", RULES)
def test_the_rule_that_chose_is_named(key: str, pack: Any) -> None:
    chosen, tried = RULES[key]
    found = [chosen, predict(ULYSSES, 1.5, fits=False)]
    (said,) = pack("costs.reasons").explain_choice(found, tried)
    assert said.key == key
    if key == "fastest_of":
        assert said.values["count"] == 1, "of those that fit"
    if key == "tried":
        assert said.values == {"at": 2, "of": 3}
    assert pack("costs.reasons").explain_choice(found[:1], tried) == [], "there is no other"
