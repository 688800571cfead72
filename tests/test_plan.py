"""A plan that cannot work is refused before anything starts, and the error says what would."""

from __future__ import annotations

import diffusers
import pytest

from parallel_backend.errors import PlanError, UnknownModelError
from parallel_backend.models import model_classes, spec_for
from parallel_backend.plan import ParallelPlan


def test_a_head_count_that_does_not_divide_names_the_nearest_degrees() -> None:
    with pytest.raises(PlanError, match=r"ulysses=3 does not divide the model's 8 heads; use 2 or 4, or ring=3\."):
        ParallelPlan(ulysses=3).check_model(heads=8)
    with pytest.raises(PlanError, match=r"use 6, or ring=7\."):
        ParallelPlan(ulysses=7).check_model(heads=6)


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(PlanError, match="pipefusion=9 has more stages than the model has blocks; use 8 or less"):
        ParallelPlan(pipefusion=9).check_model(heads=8, blocks=8)


def test_tensor_parallel_divides_the_heads_before_ulysses_does() -> None:
    with pytest.raises(PlanError, match=r"tp=3 does not divide the model's 8 heads; use 2 or 4, or ring=3\."):
        ParallelPlan(tp=3).check_model(heads=8, tensor_parallel=True)
    with pytest.raises(PlanError, match="ulysses=4 does not divide the 6 heads of a tp=4 rank; use 3 or 6, or ring=4"):
        ParallelPlan(tp=4, ulysses=4).check_model(heads=24, tensor_parallel=True)
    ParallelPlan(tp=4, ulysses=2).check_model(heads=24, tensor_parallel=True)


def test_tensor_parallel_is_refused_where_diffusers_has_no_plan_for_the_model() -> None:
    with pytest.raises(PlanError, match="tp=2 needs a model.*use tp=1, and ring=2 or pipefusion=2"):
        ParallelPlan(tp=2).check_model(heads=8, tensor_parallel=spec_for("SD3Transformer2DModel").tensor_parallel)


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
        with pytest.raises(PlanError, match=f"{asked} .* use patches=1, or ring="):
            plan.check_model(heads=8, pipefusion=spec_for(model_class).pipefusion)


def test_stages_without_patches_are_left_to_every_model() -> None:
    ParallelPlan(pipefusion=2, patches=1).check_model(heads=8, pipefusion=False)


@pytest.mark.parametrize("model_class", model_classes())
def test_a_spec_says_whether_diffusers_has_a_tensor_parallel_plan(model_class: str) -> None:
    shipped = getattr(getattr(diffusers, model_class), "_tp_plan", None) is not None
    assert spec_for(model_class).tensor_parallel == shipped


@pytest.mark.parametrize("degree", [0, -1, 1.5, True, "2"])
def test_a_degree_is_a_whole_number_from_one(degree: object) -> None:
    with pytest.raises(PlanError, match="cfg="):
        ParallelPlan(cfg=degree)


def test_an_axis_that_does_not_exist_is_named() -> None:
    with pytest.raises(PlanError, match="'unknown'.*cfg, pipefusion, ring, ulysses, tp"):
        ParallelPlan.from_json({"unknown": 2})


def test_more_ranks_than_devices_are_refused() -> None:
    with pytest.raises(PlanError, match="needs 4 devices and this machine has 2"):
        ParallelPlan(cfg=2, ulysses=2).check_devices(2)


@pytest.mark.parametrize("devices", range(1, 9))
@pytest.mark.parametrize("heads", [1, 6, 16, 24])
def test_an_automatic_plan_always_fits_model_and_machine(devices: int, heads: int) -> None:
    plan = ParallelPlan.auto(devices, heads)
    plan.check_model(heads, pipefusion=False)
    plan.check_devices(devices)


def test_an_automatic_plan_uses_every_device_where_the_heads_allow() -> None:
    assert ParallelPlan.auto(8, heads=16) == ParallelPlan(cfg=2, ulysses=4)


def test_an_unknown_transformer_class_points_to_the_manual() -> None:
    with pytest.raises(UnknownModelError, match="NoSuchTransformer.*parallel_backend/models/README.md"):
        spec_for("NoSuchTransformer")
