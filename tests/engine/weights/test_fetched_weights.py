"""Weights that are fetched for each forward give the bits that whole ones give, of every model of either library.

A block's buffer is poisoned once it has run, so that whatever is read out of turn is NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parallel_backend.models import spec_named
from parallel_backend.plan import HOST, SHARED, ParallelPlan
from tests.support.cases.families import FAMILIES, LAST_OF_CLASS
from tests.support.cases.host import CASES as ROWS
from tests.support.cases.library_plans import LONG, Plan, allows, family_allows
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

KINDS = (SHARED, HOST)
ON_TWO: list[Plan] = [{"ulysses": 2}, {"ring": 2}, {"cfg": 2}, {"dp": 2}]
OTHERS: list[Plan] = [
    {"ring": 2, "ulysses": 2},
    {"dp": 2, "cfg": 2},
    {"cfg": 2, "ulysses": 2},
    {"pipefusion": 2, "patches": 1},
    {"pipefusion": 2, "patches": 3},
    {"pipefusion": 2, "patches": 3, "ulysses": 2},
]
UNDER_EVERY_PLAN = "flux-dev"
Case = tuple[str, Plan, str]


def in_turn(names: Iterable[str], allows: Callable[[str, Plan], bool]) -> Iterator[Case]:
    """Each under one plan of two ranks, with one kind: the rows of a class differ in their inputs and sizes, and their
    blocks are fetched alike."""
    for place, name in enumerate(name for name in names if name != UNDER_EVERY_PLAN):
        able = [(name, plan, kind) for plan in ON_TWO if allows(name, plan) for kind in KINDS]
        yield able[place * 3 % len(able)]
    for plan, kind in itertools.product([*ON_TWO, *OTHERS], KINDS):
        if kind == HOST or ParallelPlan.from_json(plan).replicas > 1:
            yield UNDER_EVERY_PLAN, plan, kind


def has_lists(model_class: str) -> bool:
    """Whether a class has blocks that can be fetched."""
    spec = spec_named(model_class)
    return spec is not None and (
        not all(blocks.interleaved for blocks in spec.blocks) or bool(spec.bands and spec.bands.lists)
    )


OF_FAMILIES = [
    *in_turn(
        [name for name in FAMILIES if name in LAST_OF_CLASS and has_lists(FAMILIES[name].model_class)], family_allows
    )
]
FIRST_ROWS = {model.model_class: row for row, model in reversed(ROWS.items()) if row not in LONG}
OF_ROWS = [*in_turn([row for model_class, row in FIRST_ROWS.items() if has_lists(model_class)], allows)]
# Calls of three sizes at a time, of which the ranks have different numbers.
OF_ROWS += [("wan-t2v × 3", {"cfg": 2}, kind) for kind in KINDS]


def found_by(library: str, wanted: list[Case], ranks: RankPool, root: Path) -> dict[str, Any]:
    """By case and rank, where the outputs are equal."""
    by_world: dict[int, list[Case]] = {}
    for case in wanted:
        by_world.setdefault(ParallelPlan.from_json(case[1]).world_size, []).append(case)
    found: dict[str, Any] = {}
    for world, cases in by_world.items():
        by_rank = ranks.run(world, "weights.fetched_ranks", library, cases, str(root), cases=len(cases))
        for rank, told in enumerate(by_rank):
            for *case, equal in told:
                found.setdefault(str(tuple(case)), {})[rank] = equal
    return found


@pytest.fixture(scope="module")
def of_families(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    wanted = running(request, "family", "plan", "first")
    return found_by("diffusers", wanted, ranks, tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="module")
def of_rows(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    wanted = running(request, "row", "plan", "first")
    return found_by("comfyui", wanted, ranks, tmp_path_factory.mktemp("rows"))


def assert_equal_everywhere(found: dict[int, dict[str, bool]]) -> None:
    assert all(len(equal) > 1 for equal in found.values())
    wrong = [(rank, way) for rank, equal in found.items() for way, is_equal in equal.items() if not is_equal]
    assert not wrong


@pytest.mark.parametrize(("family", "plan", "first"), OF_FAMILIES, ids=str)
def test_a_diffusers_model_gives_the_same_bits_with_fetched_weights(
    family: str, plan: Plan, first: str, of_families: dict[str, Any]
) -> None:
    assert_equal_everywhere(of_families[str((family, plan, first))])


@pytest.mark.parametrize(("row", "plan", "first"), OF_ROWS, ids=str)
def test_a_class_of_comfyui_gives_the_same_bits_with_fetched_weights(
    row: str, plan: Plan, first: str, of_rows: dict[str, Any]
) -> None:
    assert_equal_everywhere(of_rows[str((row, plan, first))])
