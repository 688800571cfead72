"""Another plan for a loaded model: the ranks keep the weights that they have, where every rank keeps its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import FLUX_LAYER, DirectGroup
from worker.errors import RequestRefused

SIZES = (16, 16)


def loaded_anew(direct: DirectGroup, **degrees: int) -> DirectGroup:
    direct.group.park(unload=True)
    return direct.under(**degrees)


def test_a_plan_changes_without_the_files_and_gives_the_bits_of_a_load_for_it(two: DirectGroup) -> None:
    plans = [{"ulysses": 2}, {"ring": 2}, {"cfg": 2}, {"ulysses": 2, "patches": 2}]
    expected = [loaded_anew(two, **plan).sample(*SIZES) for plan in plans]
    assert not all(expected[0].equal(other) for other in expected[1:]), "plans that nothing tells apart"
    pids, weights = two.pids(), Path(two.source.files[0])
    away = weights.rename(weights.with_suffix(".away"))
    try:
        for plan, bits in zip(plans, expected, strict=True):
            assert two.under(**plan).sample(*SIZES).equal(bits)
            assert two.group.status()["plan"] == ParallelPlan(**plan).to_json()
        with pytest.raises(RequestRefused, match="No such file or directory"):
            two.under(pipefusion=2)
        with pytest.raises(RequestRefused, match="No such file or directory"):
            two.under(**plans[0])  # a load that failed leaves no model
    finally:
        away.rename(weights)
    assert two.under(**plans[0]).sample(*SIZES).equal(expected[0])
    assert two.pids() == pids


@pytest.mark.parametrize("other", [{"ring": 2}], ids=str)
def test_patched_weights_stay_so_under_another_plan_and_are_those_of_the_file_again_without_the_patch(
    two: DirectGroup, other: dict[str, int]
) -> None:
    plans = [{"ulysses": 2}, other]
    plain = [loaded_anew(two, **plan).forward(*SIZES) for plan in plans]

    def patched(direct: DirectGroup, scale: float) -> torch.Tensor:
        direct.patch(FLUX_LAYER, scale)
        return direct.forward(*SIZES)

    changed = [patched(loaded_anew(two, **plan), 0.1) for plan in plans]
    assert not changed[0].equal(plain[0])
    for index in (0, 1, 0):
        direct = two.under(**plans[index])
        assert direct.forward(*SIZES).equal(changed[index])
        assert patched(direct, 0).equal(plain[index])
        assert patched(direct, 0.1).equal(changed[index])


def test_the_conditions_of_a_request_under_another_plan_are_its_own(two: DirectGroup) -> None:
    loaded_anew(two, ulysses=2).forward(*SIZES)
    latents, timestep, conditions = two.family.inputs(2, *SIZES)
    direct = two.under(ring=2)
    first = direct.call(latents, timestep, conditions)
    other = {name: value.flip(0) for name, value in conditions.items()}
    assert not direct.call(latents, timestep, other).equal(first)
    assert direct.call(latents, timestep, conditions).equal(first)
