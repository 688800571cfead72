"""Order on a GPU's streams, without a GPU: see `tests/support/streams`.

Shown for every way to share work and weights: nothing reads or overwrites memory that other work may still use, no
memory is given up that a message may still use, and ranks do not wait for each other for ever, in whatever order their
cards begin what they may begin.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from parallel_backend.groups.communicators import count_side_by_side
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.pipeline.stages import StageLink
from tests.support.ranks.pool import RankPool
from tests.support.streams import deadlock
from tests.support.streams.waits import WAITS
from tests.support.tiers import running

SHARED, HOST = {"weights": "shared"}, {"weights": "host"}
STAGES = {"pipefusion": 2, "patches": 2, "sync_steps": 1}
# What runs, under which plan, on how many ranks. The gate has each way to share work, each place of weights, and each
# thing that a model or a sampling goes through.
CASES: list[tuple[str, dict[str, Any], int]] = [
    ("forwards", {"ulysses": 2}, 2),
    ("forwards", {"ulysses": 2, **SHARED}, 2),
    ("forwards", {"ring": 2, **HOST}, 2),
    ("forwards", {"dp": 2, **SHARED}, 2),
    ("forwards", {"ulysses": 2, "exchange_dtype": "int4"}, 2),
    ("loop", {**STAGES, **HOST}, 2),
    ("loop", {"cfg": 2, **SHARED}, 2),
    ("loop", {"pipefusion": 3, "patches": 16, "sync_steps": 1}, 3),  # more than are under way between two stages
    ("multistep", STAGES, 2),
    ("steps", STAGES, 2),
    ("parking", {"ulysses": 2}, 2),
    ("parking", {"ulysses": 2, **SHARED}, 2),
    ("adapter", {"ulysses": 2, **SHARED}, 2),
    ("adapter", {"ulysses": 2, **HOST}, 2),
    ("changes", {"ulysses": 2}, 2),
    ("cancel", {**STAGES, **HOST}, 2),
    ("failure", {"ulysses": 2, **SHARED}, 2),
    ("release", {"ulysses": 2, **HOST}, 2),
    ("interruption", {"ring": 2}, 2),
    ("decode", {}, 2),
    ("forwards", {"ring": 2, "ulysses": 2, **SHARED}, 4),
    ("loop", {**STAGES, "ulysses": 2, **SHARED}, 4),
    ("loop", {"cfg": 2, **STAGES, "ulysses": 2, **SHARED}, 8),
]
OTHERS: list[tuple[str, dict[str, Any], int]] = [
    ("forwards", {"ulysses": 2, **HOST}, 2),
    ("forwards", {"ring": 2, **SHARED}, 2),
    ("forwards", {"cfg": 2, **HOST}, 2),
    ("loop", {"pipefusion": 2, "patches": 1, **HOST}, 2),
    ("parking", {"ulysses": 2, **HOST}, 2),
    ("failure", {"ring": 2, **HOST}, 2),
    ("cancel", {"cfg": 2, **SHARED}, 2),
    ("forwards", {"cfg": 2, "ulysses": 2, **SHARED}, 4),
    ("steps", {"cfg": 2, **STAGES, **SHARED}, 4),
    ("steps", {**STAGES, "pipefusion": 4, "patches": 4}, 4),
    ("changes", {"ulysses": 4}, 4),
    ("decode", {}, 4),
    ("forwards", {"ring": 2, "ulysses": 4, **SHARED}, 8),
    ("forwards", {"dp": 2, "cfg": 2, "ring": 2, **SHARED}, 8),
    ("loop", {**STAGES, "ring": 2, "ulysses": 2, **SHARED}, 8),
]
# A sampling under every other plan. The gate has those of two and three ranks, where an axis has all ranks.
HEADS, BLOCKS = 4, 5  # of the model
FOUND = [
    ("loop", {**degrees, **({"patches": 2} if "pipefusion" in degrees else {})}, world)
    for world in (2, 3, 4, 8)
    for degrees in deadlock.list_degrees(world)
    if degrees.get("ulysses", 1) <= HEADS and degrees.get("pipefusion", 1) <= BLOCKS
]
CASES += [case for case in FOUND if case[2] < 4]
OTHERS += [case for case in FOUND if case[2] >= 4]
# In which all that may run side by side does.
TIGHT = [
    case
    for case in CASES
    if (case[0] == "loop" and "pipefusion" in case[1]) or ("ulysses" in case[1] and SHARED.items() <= case[1].items())
]
Told = list[dict[str, Any]]  # by rank


def cases() -> list[Any]:
    return [
        pytest.param((what, plan, world, ""), marks=marks, id=f"{what} {plan} {world}")
        for rows, marks in ((CASES, []), (OTHERS, [pytest.mark.slow]))
        for what, plan, world in rows
    ]


@pytest.fixture(scope="module")
def every(
    request: pytest.FixtureRequest, labelled_ranks: RankPool, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Told]:
    """What the simulator of each rank tells of the cases that this session runs."""
    wanted, found = {json.dumps(case): case for (case,) in running(request, "case")}, {}
    for ranks in sorted({world for _, _, world, _ in wanted.values()}):
        own = [[what, plan, missing] for what, plan, world, missing in wanted.values() if world == ranks]
        by_rank = labelled_ranks.run(ranks, "cuda.stream_ranks", own, str(tmp_path_factory.mktemp("streams")))
        for what, plan, missing in own:
            told = [each[json.dumps([what, plan, missing])] for each in by_rank]
            found[json.dumps([what, plan, ranks, missing])] = told
    return found


@pytest.fixture
def told(case: tuple, every: dict[str, Told]) -> Told:
    """Of the test's case."""
    for rank, found in enumerate(every[json.dumps(case)]):
        assert not found["failed"], f"rank {rank}: {found['failed']}"
    return every[json.dumps(case)]


@pytest.mark.parametrize("case", cases())
def test_work_on_streams_is_ordered(case: tuple, told: Told) -> None:
    for rank, found in enumerate(told):
        assert found["accesses"] > 50, "the simulator is told of the work"
        assert not found["findings"], f"rank {rank}: " + "\n".join(found["findings"])


@pytest.mark.parametrize("case", cases())
def test_the_allocator_takes_no_more_than_tensors_need(case: tuple, told: Told) -> None:
    """Freed memory of messages is lost until the host waits for the device, as it does for the result of each forward;
    here nobody waits for them. A VAE's layers send single rows alone."""
    for found in told:
        assert found["taken"] - found["in use"] <= found["results"] or case[0] == "decode"


@pytest.mark.parametrize("case", [pytest.param((*wait.run, 2, name), id=name) for name, wait in WAITS.items()])
def test_a_wait_that_is_taken_away_is_missed(case: tuple, told: Told) -> None:
    assert any(rank["findings"] for rank in told)


@pytest.mark.parametrize("case", cases())
def test_ranks_do_not_wait_for_each_other_for_ever(case: tuple, told: Told) -> None:
    """Not on cards that run as many kernels side by side as are counted beforehand; nor if a rank waits for its device
    after a receive."""
    calls, (what, plan, _, _) = deadlock.calls_of([rank["kernels"] for rank in told]), case
    deadlock.check_receives(calls)
    # Changes come to shared weights, whatever they began with.
    counted = ParallelPlan(**plan, **(SHARED if what == "changes" else {}))
    needed = max(deadlock.room_needed(calls).values())
    assert needed <= count_side_by_side(counted)
    assert needed == count_side_by_side(counted) or case[:3] not in TIGHT


@pytest.mark.parametrize("case", cases())
def test_kernels_may_be_loaded_when_they_first_run(case: tuple, told: Told) -> None:
    """To load one, CUDA waits for all that was launched, and ranks load kernels at different times."""
    deadlock.check(deadlock.calls_of([rank["kernels"] for rank in told], loads=True))


def test_a_sampling_that_ends_in_a_step_without_receives_ahead_leaves_none_to_the_next() -> None:
    """The next may be a stock sampler's, whose steps do not set it."""
    axis = SimpleNamespace(index=0, degree=2, global_rank=lambda index: index)
    mesh: Any = MagicMock()
    mesh.__getitem__.return_value = axis
    link = StageLink(mesh, MagicMock())
    link.receives_ahead = False
    link.expect([], None, 0)
    assert link.receives_ahead
