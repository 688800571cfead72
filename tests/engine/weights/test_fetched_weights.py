"""Weights that are fetched for each forward give the bits that whole ones give, of every model of either library.

A block's buffer is poisoned once it has run, so that whatever is read out of turn is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from parallel_backend.models import spec_named
from parallel_backend.plan import HOST, SHARED, ParallelPlan
from tests.support.cases.families import FAMILIES
from tests.support.cases.host import CASES as ROWS
from tests.support.cases.library_plans import LONG, Plan, allows, family_allows
from tests.support.ranks.pool import RankPool, split_into_jobs
from tests.support.tiers import running

KINDS = (SHARED, HOST)
ON_TWO: list[Plan] = [{"ulysses": 2}, {"ring": 2}, {"cfg": 2}, {"dp": 2}]
ON_FOUR: list[Plan] = [{"ring": 2, "ulysses": 2}, {"dp": 2, "cfg": 2}, {"cfg": 2, "ulysses": 2}]
STAGES: list[Plan] = [
    {"pipefusion": 2, "patches": 1},
    {"pipefusion": 2, "patches": 3},
    {"pipefusion": 2, "patches": 3, "ulysses": 2},
]
CUT_TO_PATCHES = ("dit", "pixart-alpha", "hunyuandit-1.2", "flux-dev", "wan-t2v")  # diffusers' that STAGES are for
# The gate has each class with one kind under one plan of two ranks, in turn: the rows of a class differ in their inputs
# and sizes, and their blocks are fetched alike. Under every plan it has these.
FAMILIES_UNDER_EVERY = ("flux-dev",)
ROWS_UNDER_EVERY = ("flux-dev",)

Cases = Iterator[tuple[str, Plan, str]]


def families() -> Cases:
    for name in (name for name in FAMILIES if family_allows(name, {"pipefusion": 2})):  # which have blocks
        plans = [*ON_TWO, *ON_FOUR, *(STAGES if name in CUT_TO_PATCHES else ())]
        able = [plan for plan in plans if family_allows(name, plan)]
        yield from ((name, plan, kind) for plan in able for kind in KINDS if is_possible(plan, kind))


def has_lists(name: str) -> bool:
    """Whether the class of a row has blocks that can be fetched."""
    spec = spec_named(ROWS[name].model_class)
    return spec is not None and (
        not all(blocks.interleaved for blocks in spec.blocks) or bool(spec.bands and spec.bands.lists)
    )


def rows() -> Cases:
    for name in filter(has_lists, ROWS):
        plans = [plan for plan in [*ON_TWO[:3], *ON_FOUR, *STAGES] if allows(name, plan)]
        yield from ((name, plan, kind) for plan in plans for kind in KINDS if is_possible(plan, kind))
    # Calls of three sizes at a time, of which the ranks have different numbers.
    yield from (("wan-t2v × 3", plan, kind) for plan in ({"cfg": 2}, {"cfg": 2, "ulysses": 2}) for kind in KINDS)


def is_possible(plan: Plan, kind: str) -> bool:
    return kind == HOST or ParallelPlan.from_json(plan).replicas > 1


def marked(cases: Cases, models: Mapping[str, Any], under_every: tuple[str, ...]) -> Iterator[Any]:
    """As parameters, of which most are slow."""
    first_of = {}  # by class
    for name, model in models.items():
        first_of.setdefault(model.model_class, name)
    by_name: dict[str, list[tuple[str, Plan, str]]] = {}
    for case in cases:
        by_name.setdefault(case[0], []).append(case)
    for place, (name, own) in enumerate(by_name.items()):
        two = [case for case in own if ParallelPlan.from_json(case[1]).world_size == 2]
        quick = two[place * 3 % len(two) :][:1] if name in first_of.values() or name not in models else []
        quick = own if name in under_every else quick
        for case in own:
            is_slow = case not in quick or name in LONG
            yield pytest.param(*case, marks=[pytest.mark.slow] if is_slow else [])


def found_by(library: str, wanted: list[tuple[str, Plan, str]], ranks: RankPool, root: Path) -> dict[str, Any]:
    """By case and rank, where the outputs are equal."""
    by_world: dict[int, list[tuple[str, Plan, str]]] = {}
    for case in wanted:
        by_world.setdefault(ParallelPlan.from_json(case[1]).world_size, []).append(case)
    found: dict[str, Any] = {}
    for world, cases in by_world.items():
        for part in split_into_jobs(cases):
            for rank, told in enumerate(
                ranks.run(world, "weights.fetched_ranks", library, part, str(root), cases=len(part))
            ):
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


@pytest.mark.parametrize(("family", "plan", "first"), [*marked(families(), FAMILIES, FAMILIES_UNDER_EVERY)], ids=str)
def test_a_diffusers_model_gives_the_same_bits_with_fetched_weights(
    family: str, plan: Plan, first: str, of_families: dict[str, Any]
) -> None:
    assert_equal_everywhere(of_families[str((family, plan, first))])


@pytest.mark.parametrize(("row", "plan", "first"), [*marked(rows(), ROWS, ROWS_UNDER_EVERY)], ids=str)
def test_a_class_of_comfyui_gives_the_same_bits_with_fetched_weights(
    row: str, plan: Plan, first: str, of_rows: dict[str, Any]
) -> None:
    assert_equal_everywhere(of_rows[str((row, plan, first))])
