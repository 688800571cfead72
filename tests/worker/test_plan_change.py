"""Another plan for a loaded model: the ranks keep the weights that they have, where every rank keeps its own. A plan of
fewer ranks than run has the first of them; the others let go of their weights, and wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import (
    FLUX,
    FLUX_LAYER,
    SHORT,
    DirectGroup,
    direct_group,
    go_on,
    kwargs_of,
    wait_until,
)
from worker.comfyui.call_keys import KERNEL
from worker.errors import RequestRefused
from worker.host.client import WorkerGroup
from worker.wire.operations import NO_KERNEL
from worker.wire.private_folder import STORE
from worker.wire.protocol import Header

SIZES = (16, 16)
WHOLE, PART = {"ulysses": 2, "ring": 2}, {"ulysses": 2}
SHARED = {"ulysses": 2, "weights": "shared"}
# Some have measured their link before others do.
PLANS = [{}, PART, {"cfg": 2}, SHARED, {"ring": 3}]
SECONDS = 60.0


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


def test_patched_weights_stay_so_under_another_plan_and_are_those_of_the_file_again_without_the_patch(
    two: DirectGroup,
) -> None:
    plans = [{"ulysses": 2}, {"ring": 2}]
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


def test_each_reply_says_why_the_ranks_do_not_use_the_kernel_that_a_node_chose_under_its_plan(two: DirectGroup) -> None:
    latents, timestep, conditions = two.family.inputs(2, *SIZES)
    kwargs = {**kwargs_of(two.family, conditions), "transformer_options": {KERNEL: "split"}}
    told: list[Header] = []

    def call(**plan: int) -> torch.Tensor:
        note = lambda reply, _state: told.append(reply)  # noqa: E731
        ((found,),) = two.under(**plan).group.call([((latents, timestep), kwargs)], go_on, on_reply=note)
        return found

    ring, again, ulysses = call(ring=2), call(ring=2), call(ulysses=2)
    assert again.equal(ring) and torch.allclose(ulysses, ring, rtol=1e-4, atol=1e-5)
    said, *others = [reply.get(NO_KERNEL, "") for reply in told]
    assert "returns no log-sum-exp, which ring=2 needs. The ranks attend by" in said and others == [said, ""]


@pytest.fixture(scope="module")
def four(own_ranks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectGroup]:
    with direct_group(tmp_path_factory.mktemp("four"), FLUX, **WHOLE) as direct:
        yield direct


def both(direct: DirectGroup) -> torch.Tensor:
    return torch.stack([direct.forward(*SIZES), direct.sample(*SIZES)])


def held(direct: DirectGroup) -> list[bool]:
    """By rank, whether it has weights."""
    return [memory["weights"] > 0 for memory in direct.group.status()["memory"]]


def test_a_smaller_plan_gives_the_bits_of_a_group_of_its_size(four: DirectGroup, group_of_two: WorkerGroup) -> None:
    two = replace(four, group=group_of_two)
    pids = four.pids()
    for plan in PLANS:
        part = four.under(**plan)
        if part.plan.world_size <= 2:
            own = replace(two, plan=part.plan)
            group_of_two.load(own.source.to_json(), own.plan.to_json(), own.plan.world_size, go_on)
            assert both(part).equal(both(own)), plan
        else:
            assert torch.allclose(both(part), both(four.under(**WHOLE)), atol=1e-4), plan
            part.load()
        assert part.group.status()["plan"] == part.plan.to_json()
        expected = [rank < part.plan.world_size for rank in range(4)]  # once they have told of themselves
        assert wait_until(lambda part=part, expected=expected: held(part) == expected, SECONDS), held(part)
        assert four.pids() == pids


def test_its_ranks_keep_the_weights_that_they_have_and_the_others_read_theirs_again(four: DirectGroup) -> None:
    four.under(**WHOLE)
    weights = Path(four.source.files[0])
    away = weights.rename(weights.with_suffix(".away"))
    try:
        expected = both(four.under(**PART))
        assert both(four.under()).isfinite().all()
        with pytest.raises(RequestRefused, match="No such file or directory"):
            four.under(**WHOLE)
    finally:
        away.rename(weights)
    assert both(four.under(**PART)).equal(expected)


def test_all_ranks_take_part_again_in_what_is_for_all(four: DirectGroup) -> None:
    part = four.in_memory().under(**PART)
    expected = both(part)
    assert b"rank 3" in part.group.trace()
    part.group.trim()
    part.park()
    assert both(part).equal(expected)
    part.group.park(unload=True)
    part.load()
    assert both(part).equal(expected)
    assert both(four.under(**WHOLE)).isfinite().all()


def test_a_sampling_on_a_part_is_cancelled_and_refused_as_on_the_whole(four: DirectGroup) -> None:
    part, pids = four.under(**PART), four.pids()
    expected, seen = both(part), []

    def give_up() -> None:
        if part.group.status()["operation"] == "sample":
            seen.append(1)
        if len(seen) > 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        part.sample(*SIZES, call=replace(SHORT, steps=900), check=give_up)
    assert both(part).equal(expected)
    latents, timestep, conditions = part.family.inputs(2, *SIZES)
    with pytest.raises(RequestRefused):
        part.call(latents[:, :1], timestep, conditions)
    part.load()
    assert both(part).equal(expected)
    assert four.pids() == pids


def test_plans_change_after_a_cleaner_has_removed_the_file_in_which_ranks_meet(four: DirectGroup) -> None:
    four.under(**WHOLE)
    expected, pids, ends = both(four), four.pids(), time.monotonic() + SECONDS
    assert four.group.session
    (four.group.session.process.folder / STORE).unlink()

    def check() -> None:
        assert time.monotonic() < ends, "the ranks wait for each other"

    for plan in ({"ring": 4}, WHOLE):
        replace(four, plan=ParallelPlan(**plan)).load(check)
    assert both(four).equal(expected)
    assert four.pids() == pids
