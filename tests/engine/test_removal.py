"""What a plan puts on a model can be taken off, and another be put in its place, without reading the weights again."""

from __future__ import annotations

import pytest

from parallel_backend.groups.mesh_layout import same_weights
from parallel_backend.plan import ParallelPlan
from tests.support.cases.families import LAST_OF_CLASS
from tests.support.cases.library_plans import family_allows
from tests.support.cases.pipefusion_cases import family_of
from tests.support.ranks.pool import RankPool
from tests.support.ranks.weights.removal_ranks import STOPPED, case_name

STAGES = {"pipefusion": 2, "patches": 1}
# One family of each class: every seam once, shared tokens and stages.
REMOVED = [(name, plan) for name in LAST_OF_CLASS for plan in ({"ulysses": 2}, STAGES) if family_allows(name, plan)]
REMOVED += [(name, {"ring": 2}) for name in ("flux-dev", "qwenimage")]
PIPELINES = {"Flux": [{"ulysses": 2}, {"ring": 2}, {"dp": 2}], "Qwen-Image": [{"ring": 2}, {"ulysses": 2}]}
Found = list[dict[str, dict[str, bool]]]  # by rank, case and promise


@pytest.fixture(scope="module")
def found(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Found:
    root = tmp_path_factory.mktemp("removal")
    family_of(STOPPED).save(root / STOPPED)
    return ranks.run(2, "weights.removal_ranks", str(root), REMOVED, PIPELINES)


def assert_all_hold(found: Found, name: str, count: int) -> None:
    for rank in found:
        assert len(rank[name]) == count
        assert [promise for promise, holds in rank[name].items() if not holds] == []


@pytest.mark.parametrize(("name", "plan"), REMOVED, ids=str)
def test_a_model_is_as_before_once_its_plan_is_taken_off(name: str, plan: dict, found: Found) -> None:
    assert_all_hold(found, case_name(name, plan), 4)


def test_a_stage_says_that_the_other_blocks_have_no_weights_and_goes_on(found: Found) -> None:
    assert_all_hold(found, STOPPED, 2)


@pytest.mark.parametrize(("name", "plans"), PIPELINES.items(), ids=PIPELINES)
def test_a_pipeline_is_plain_again_and_parallel_again(name: str, plans: list[dict], found: Found) -> None:
    assert_all_hold(found, f"{name}, pipeline", 4 * len(plans) + 1)


@pytest.mark.parametrize(
    ("plan", "other", "same"),
    [
        ({"ulysses": 4}, {"ring": 2, "cfg": 2}, True),
        ({"pipefusion": 2, "ulysses": 2}, {"pipefusion": 2, "ring": 2, "patches": 5}, True),
        ({"pipefusion": 2, "ulysses": 2}, {"pipefusion": 2, "cfg": 2}, False),  # ranks 1 and 2 change their stages
        ({"ulysses": 2}, {"pipefusion": 2}, False),
    ],
)
def test_weights_stay_where_no_rank_would_hold_others(plan: dict, other: dict, same: bool) -> None:
    plans = ParallelPlan(**plan), ParallelPlan(**other)
    assert same_weights(*plans) == same_weights(*plans[::-1]) == same


def test_weights_stay_on_the_first_ranks_for_a_plan_of_fewer_and_others_need_them_for_one_of_more() -> None:
    two, four = ParallelPlan(ulysses=2), ParallelPlan(ulysses=4)
    assert same_weights(four, two) and not same_weights(two, four)
