"""Devices of unlike speed get work in proportion: how it is split, and what a plan says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_backend.errors import PlanError
from parallel_backend.groups.calls import share_out
from parallel_backend.groups.mesh import Axis
from parallel_backend.groups.mesh_layout import (
    axis_shares,
    coordinates_of_ranks,
    largest_rows,
    largest_share,
    rank_parts,
    same_weights,
    shard_sizes,
    split_sizes,
    stage_ranges,
    stages_of,
)
from parallel_backend.plan import ParallelPlan

SIZES = st.integers(0, 5000)
SPEEDS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9).map(tuple)


@given(SIZES, SPEEDS)
def test_a_split_is_of_all_and_within_one_of_what_is_due(size: int, speeds: tuple[float, ...]) -> None:
    sizes = split_sizes(size, speeds)
    assert sum(sizes) == size
    for given_to, speed in zip(sizes, speeds, strict=True):
        assert abs(given_to - size * speed / sum(speeds)) < 1 + 1e-6
    assert split_sizes.__wrapped__(size, speeds) == sizes, "as often as one asks"


@given(SIZES, st.floats(1e-3, 1e3), st.integers(1, 9))
def test_equal_speeds_split_evenly(size: int, speed: float, ranks: int) -> None:
    evenly = [size // ranks + (index < size % ranks) for index in range(ranks)]
    assert shard_sizes(size, ranks, (speed,) * ranks) == shard_sizes(size, ranks) == evenly


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), st.data())
def test_stages_have_all_blocks_and_none_is_empty(blocks: list[int], data: st.DataObject) -> None:
    speeds = data.draw(st.lists(st.floats(0.01, 100), min_size=1, max_size=min(4, len(blocks))).map(tuple))
    stages = stage_ranges(blocks, len(speeds), speeds)
    assert [block for stage in stages for block in stage] == [*range(len(blocks))]
    assert all(stages)


def test_equal_speeds_are_none_and_a_list_is_a_tuple() -> None:
    assert ParallelPlan(ulysses=2, speeds=(3, 3)) == ParallelPlan(ulysses=2)
    plan = ParallelPlan.from_json({"ulysses": 2, "speeds": [1, 0.5]})
    assert (plan.speeds, hash(plan)) == ((1.0, 0.5), hash(ParallelPlan(ulysses=2, speeds=(1, 0.5))))
    assert plan.to_json()["speeds"] == [1.0, 0.5]
    assert ParallelPlan.from_json(plan.to_json()) == plan
    assert str(plan) == "ulysses=2 × speeds 1:0.5"


@pytest.mark.parametrize("speeds", [[1, 0], [1, -1], [1, float("inf")], [1, float("nan")], [1, True], [1, "2"], "1, 2"])
def test_a_speed_is_a_positive_number(speeds: object) -> None:
    with pytest.raises(PlanError, match="speeds=.*does not work") as caught:
        ParallelPlan(ulysses=2, speeds=speeds)
    assert caught.value.fields == ("speeds",)


def test_speeds_are_of_all_ranks() -> None:
    with pytest.raises(PlanError, match="There are 3 speeds, and the plan ulysses=2 has 2 ranks"):
        ParallelPlan(ulysses=2, speeds=(1, 2, 3))


def test_one_rank_that_runs_in_place_of_several_has_no_speeds() -> None:
    assert ParallelPlan(ulysses=2, speeds=(1, 2)).fit_devices(1, cores=False) == ParallelPlan()


def test_a_place_is_as_fast_as_all_behind_it() -> None:
    """Tokens and heads are split alike in all stages, since they go from one to the next; stages alike in all groups
    that share the batch, since they hold the same weights."""
    plan = ParallelPlan(cfg=2, pipefusion=2, ulysses=2, patches=1, speeds=(1, 2, 3, 4, 5, 6, 7, 9))
    first, *_, last = coordinates_of_ranks(plan)
    assert axis_shares(plan, "batch", first) == axis_shares(plan, "batch", last) == (10, 27)
    assert axis_shares(plan, "pipefusion", first) == axis_shares(plan, "pipefusion", last) == (14, 23)
    assert axis_shares(plan, "sequence", first) == (4, 6)
    assert axis_shares(plan, "sequence", last) == (12, 15)
    assert axis_shares(plan, "ulysses", last) == axis_shares(plan, "sequence", last)
    assert largest_share(plan, "sequence") == 0.6
    assert largest_rows(plan, 4) == 3
    assert [part.rows for part in rank_parts(plan)][3:5] == [(0, 10 / 37), (10 / 37, 1)]


def test_stages_take_as_long_as_each_other_unless_memory_is_to_be_even() -> None:
    """Flux's first 19 blocks have 2.4 times the bytes of the others, and take as long."""
    blocks = [36] * 19 + [15] * 38
    lengths = {
        plan: [len(stage) for stage in stages_of(plan, blocks)]
        for plan in (
            ParallelPlan(pipefusion=2),
            ParallelPlan(pipefusion=2, balance="memory"),
            ParallelPlan(pipefusion=2, weights="host", weight_blocks=4),
            ParallelPlan(pipefusion=2, speeds=(2, 1)),
        )
    }
    assert [*lengths.values()] == [[28, 29], [17, 40], [28, 29], [38, 19]]
    by_time, by_memory, host, unlike = lengths
    assert same_weights(by_time, replace(host, patches=3))
    assert not same_weights(by_time, by_memory)
    assert not same_weights(by_time, unlike)
    assert same_weights(unlike, ParallelPlan(pipefusion=2, speeds=(1, 0.5)))
    assert same_weights(ParallelPlan(ulysses=2), ParallelPlan(ulysses=2, speeds=(2, 1)))


@pytest.mark.parametrize(
    ("sizes", "speeds", "shares"),
    [
        ([4], (3, 1), [(0, 0, 3), (0, 1, 1)]),
        ([1, 1], (1, 5), [(0, 1, 1), (1, 1, 1)]),
        ([2, 2], (1, 0.3), [(0, 0, 2), (1, 0, 1), (1, 1, 1)]),
        ([1, 1, 3], (1, 1, 2), [(0, 0, 1), (1, 1, 1), (2, 1, 0), (2, 2, 3)]),
    ],
)
def test_several_calls_are_shared_out_by_the_speed_of_the_groups(
    sizes: list[int], speeds: tuple[float, ...], shares: list[tuple[int, int, int]]
) -> None:
    """shares: of which call, to which group, how many rows."""
    parts = share_out(sizes, Axis(None, len(speeds), 0, shares=speeds))
    found = [(part.call, part.group, part.rows.own_size(sizes[part.call])) for part in parts]
    assert found == [share for share in shares if share[2]]
    for call, size in enumerate(sizes):
        rows = [row for part in parts if part.call == call for row in range(size)[part.rows.own(size)]]
        assert rows == [*range(size)]
