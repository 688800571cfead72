"""A plan that cannot work is refused before anything starts, and the error says what would."""

from __future__ import annotations

import re

import pytest

from demo.host import REPOSITORY
from parallel_backend.axes import AXES, BATCH_AXES, STAGE_AXES, TOKEN_AXES
from parallel_backend.errors import PlanError, UnknownModelError
from parallel_backend.groups.mesh_layout import rank_parts
from parallel_backend.models import known_spec
from parallel_backend.plan import ParallelPlan
from tests.support.ranks.plan_ranks import BLOCK_BYTES, HEADS, PLANS, TOKENS
from tests.support.ranks.pool import RankPool

WORLD = 8


def test_each_axis_splits_one_thing() -> None:
    assert sorted(AXES) == sorted((*BATCH_AXES, *STAGE_AXES, *TOKEN_AXES))


def test_ulysses_takes_any_number_of_ranks_up_to_the_heads() -> None:
    for degree in range(1, 9):
        ParallelPlan(ulysses=degree).check_model(heads=8)
    words = r"ulysses=9 is more than the model's 8 heads\.\n\nLower it to 8 or less, or take ring=9\."
    with pytest.raises(PlanError, match=words) as caught:
        ParallelPlan(ulysses=9).check_model(heads=8)
    assert caught.value.fields == ("ulysses",)


@pytest.mark.parametrize(
    ("degrees", "has"), [({"ring": 2}, "ring"), ({"pipefusion": 2}, "pipefusion"), ({"patches": 3}, "pipefusion")]
)
def test_differences_to_the_step_before_are_refused_where_other_tokens_than_ulysses_exchange(
    degrees: dict[str, int], has: str
) -> None:
    with pytest.raises(PlanError, match=rf"exchange_dtype=int4 .* has {has}.*\n\nUse exchange_dtype=model"):
        ParallelPlan(exchange_dtype="int4", **degrees)
    assert ParallelPlan(exchange_dtype="int4", ulysses=2, cfg=2).ulysses == 2


def test_more_stages_than_blocks_are_refused() -> None:
    words = r"pipefusion=9 has more stages than the model has blocks\.\n\nUse 8 or less"
    with pytest.raises(PlanError, match=words) as caught:
        ParallelPlan(pipefusion=9).check_model(heads=8, blocks=8)
    assert caught.value.fields == ("pipefusion",)


@pytest.mark.parametrize(
    ("plan", "asked"),
    [
        (ParallelPlan(pipefusion=2), "pipefusion=2 with 2 patches"),
        (ParallelPlan(pipefusion=2, patches=4), "pipefusion=2 with 4 patches"),
        (ParallelPlan(patches=3), "pipefusion=1 with 3 patches"),
    ],
)
def test_patches_are_refused_where_the_blocks_see_text_and_image_as_one_sequence(
    plan: ParallelPlan, asked: str
) -> None:
    for model_class in ("ZImageTransformer2DModel", "Lumina2Transformer2DModel"):
        with pytest.raises(PlanError, match=rf"{asked} .*\n\nUse patches=1, or ring="):
            plan.check_model(heads=8, pipefusion=bool(known_spec(model_class).image))


def test_stages_without_patches_are_left_to_every_model() -> None:
    ParallelPlan(pipefusion=2, patches=1).check_model(heads=8, pipefusion=False)


@pytest.mark.parametrize("degree", [0, -1, 1.5, True, "2"])
def test_a_degree_is_a_whole_number_from_one(degree: object) -> None:
    with pytest.raises(PlanError, match="cfg="):
        ParallelPlan(cfg=degree)


def test_an_axis_that_does_not_exist_is_named() -> None:
    with pytest.raises(PlanError, match="'unknown'.*cfg, pipefusion, ring, ulysses"):
        ParallelPlan.from_json({"unknown": 2})


def test_more_ranks_than_devices_are_refused() -> None:
    with pytest.raises(PlanError, match="needs 4 devices and this machine has 2") as caught:
        ParallelPlan(cfg=2, ulysses=2).fit_devices(2, cores=False)
    assert caught.value.fields == ("cfg", "ulysses")


def test_with_one_device_or_too_few_cores_one_rank_runs_with_the_same_kernel() -> None:
    asked = ParallelPlan(cfg=2, pipefusion=2, patches=3, attention="flash")
    assert asked.fit_devices(1, cores=False) == ParallelPlan(attention="flash")
    assert asked.fit_devices(2, cores=True) == ParallelPlan(attention="flash")
    assert asked.fit_devices(4, cores=False) is asked


def test_an_unknown_transformer_class_points_to_the_manual() -> None:
    with pytest.raises(UnknownModelError, match=r"NoSuchTransformer.*\n\n.*parallel_backend/models/README.md"):
        known_spec("NoSuchTransformer")


def test_a_plan_in_json_has_its_axes_first_in_the_order_of_the_mesh() -> None:
    """The panel shows what else a plan has in other words, and all the rest of it as degrees."""
    names = [*ParallelPlan().to_json()]
    assert names[: len(AXES)] == [*AXES] == [*ParallelPlan().degrees()]
    (no_axes,) = re.findall(r"const NO_AXES = \[(.*?)\]", (REPOSITORY / "web/panel/format.mjs").read_text(), re.DOTALL)
    assert re.findall(r"'(\w+)'", no_axes) == names[len(AXES) :]
    (degrees,) = re.findall(r"const DEGREES = \[(.*?)\]", (REPOSITORY / "web/plan/used.mjs").read_text())
    assert sorted(re.findall(r"'(\w+)'", degrees)) == sorted(names[: len(AXES)]), "the node folds other widgets"


@pytest.fixture(scope="module")
def real_parts(ranks: RankPool) -> list[list[dict]]:
    """What the engine gives each rank under each of PLANS."""
    return ranks.run(WORLD, "plan_ranks")


@pytest.mark.parametrize("case", range(len(PLANS)), ids=[str(ParallelPlan(**plan)) for plan in PLANS])
def test_what_is_told_of_each_rank_is_what_the_engine_gives_it(case: int, real_parts: list[list[dict]]) -> None:
    plan = ParallelPlan(**PLANS[case])
    parts = rank_parts(plan, HEADS, BLOCK_BYTES)
    assert len(parts) == plan.world_size
    found = [ranks[case] for ranks in real_parts]
    idle = found[plan.world_size :] if plan.world_size > 1 else []
    assert not any(index for real in idle for index in real["coordinates"].values())
    for part, real in zip(parts if idle else parts * (WORLD // len(parts)), found[: WORLD - len(idle)], strict=True):
        assert part.coordinates == real["coordinates"]
        assert list(part.blocks) == real["blocks"]
        assert list(part.heads) == real["heads"]
        assert [round(at * HEADS) for at in part.head_share or (0, 1)] == [real["heads"][0], real["heads"][-1] + 1]
        spans = [range(round(start * TOKENS), round(stop * TOKENS)) for start, stop in part.tokens]
        assert [token for span in spans for token in span] == real["tokens"]
