"""What a plan puts on a model can be taken off, and another be put in its place, without reading the weights again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.groups.mesh_layout import same_weights
from parallel_backend.hooks import Hooks
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.loading import ModelSource
from tests.support.cases.families import FAMILIES, LAST_OF_CLASS
from tests.support.cases.pipefusion_cases import family_of
from tests.support.cases.removal_cases import PARKED, PIPELINES, REMOVED, STOPPED, case_name
from tests.support.family_model import FamilyModel
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each rank found, by case name; all cases of a world size at once."""
    root = tmp_path_factory.mktemp("removal")
    removed = running(request, "removed", "plan", "world")
    for name in {case[0] for case in STOPPED}:
        family_of(name).save(root / name)
    return ranks.run(2, "weights.removal_ranks", str(root), removed)


def assert_all_hold(found: list[dict], name: str, world: int, count: int) -> None:
    ranks = [rank[name] for rank in found if name in rank]
    assert len(ranks) == world
    for rank in ranks:
        assert len(rank) == count
        assert [promise for promise, holds in rank.items() if not holds] == []


# The gate has one family of each class.
@pytest.mark.parametrize(
    ("removed", "plan", "world"),
    [
        pytest.param(*case, marks=[] if case[0] in LAST_OF_CLASS or case[1] in PARKED else [pytest.mark.slow])
        for case in REMOVED
    ],
    ids=str,
)
def test_a_model_is_as_before_once_its_plan_is_taken_off(
    removed: str, plan: dict, world: int, found: list[dict]
) -> None:
    assert_all_hold(found, case_name("removed", removed, plan), world, 4)


@pytest.mark.parametrize(("name", "plan", "world"), STOPPED, ids=str)
def test_a_stage_says_that_the_other_blocks_have_no_weights_and_goes_on(
    name: str, plan: dict, world: int, found: list[dict]
) -> None:
    assert_all_hold(found, case_name("stopped", name, plan), world, 3)


@pytest.mark.parametrize(("name", "plans", "world"), PIPELINES, ids=str)
def test_a_pipeline_is_plain_again_and_parallel_again(
    name: str, plans: list[dict], world: int, found: list[dict]
) -> None:
    assert_all_hold(found, case_name("pipeline", name, plans), world, 4 * len(plans) + 1)


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


def one_rank(**plan: int | str) -> Mesh:
    names = (*ParallelPlan().degrees(), "batch", "sequence")
    return Mesh(ParallelPlan(**plan), torch.device("cpu"), dict.fromkeys(names, Axis(None, 1, 0)))


def test_what_is_remembered_of_conditions_goes(tmp_path: Path) -> None:
    family = FAMILIES["pixart-alpha"]  # its projections of the text are remembered
    path = family.save(tmp_path) / "diffusion_pytorch_model.safetensors"
    transformer = FamilyModel.load(ModelSource(family.model_class, family.config, (str(path),)), one_rank())
    path.unlink()
    inputs = family.inputs(2, 16, 16)
    expected = transformer(*inputs)
    transformer.replan(one_rank(sync_steps=2))
    assert transformer(*inputs).equal(expected)
    transformer.remove()
    with torch.inference_mode():
        assert family.reference(transformer.model, *inputs).equal(expected)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in transformer.model.modules())


def test_an_attribute_that_was_there_comes_back_and_one_that_was_not_goes() -> None:
    layer, hooks = torch.nn.Linear(1, 1), Hooks()
    layer.old = 1
    for value in (2, 3):
        hooks.replace(layer, "old", value)
        hooks.replace(layer, "new", value)
    assert (layer.old, layer.new) == (3, 3)
    hooks.remove()
    assert layer.old == 1 and not hasattr(layer, "new")
