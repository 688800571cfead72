"""Weights that are fetched for each forward give the bits that whole ones give, of every model of either library.

A block's buffer is poisoned once it has run, so that whatever is read out of turn is NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

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


OF_FAMILIES = in_turn(
    [name for name in FAMILIES if name in LAST_OF_CLASS and has_lists(FAMILIES[name].model_class)], family_allows
)
FIRST_ROWS = {model.model_class: row for row, model in reversed(ROWS.items()) if row not in LONG}
OF_ROWS = in_turn([row for model_class, row in FIRST_ROWS.items() if has_lists(model_class)], allows)
# Calls of three sizes at a time, of which the ranks have different numbers.
SEVERAL = [("wan-t2v × 3", {"cfg": 2}, kind) for kind in KINDS]
CASES = [
    *(("diffusers", *case) for case in OF_FAMILIES),
    *(("comfyui", *case) for case in (*OF_ROWS, *SEVERAL)),
]


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[int, dict[str, bool]]]:
    """By case and rank, where the outputs are equal."""
    root = str(tmp_path_factory.mktemp("models"))
    jobs: dict[tuple[str, int], list[Case]] = {}
    for library, name, plan, kind in running(request, "library", "name", "plan", "kind"):
        jobs.setdefault((library, ParallelPlan.from_json(plan).world_size), []).append((name, plan, kind))
    found: dict[str, dict[int, dict[str, bool]]] = {}
    for (library, world), cases in jobs.items():
        by_rank = ranks.run(world, "weights.fetched_ranks", library, cases, root, cases=len(cases))
        for rank, told in enumerate(by_rank):
            for *case, equal in told:
                found.setdefault(str((library, *case)), {})[rank] = equal
    return found


@pytest.mark.parametrize(("library", "name", "plan", "kind"), CASES, ids=str)
def test_a_model_gives_the_same_bits_with_fetched_weights(
    library: str, name: str, plan: Plan, kind: str, found: dict[str, dict[int, dict[str, bool]]]
) -> None:
    by_rank = found[str((library, name, plan, kind))]
    assert all(len(equal) > 1 for equal in by_rank.values())
    assert not [(rank, way) for rank, equal in by_rank.items() for way, is_equal in equal.items() if not is_equal]
