"""Communicators of a rank on GPUs: as many as are listed, and what memory their buffers take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from parallel_backend.device import group_options
from parallel_backend.groups import mesh
from parallel_backend.groups.communicators import Communicator, count_communicator_bytes, list_communicators, of_axis
from parallel_backend.groups.mesh_layout import coordinates_of_ranks
from parallel_backend.groups.timeline import Timeline
from parallel_backend.plan import SHARED, WHOLE, ParallelPlan
from tests.support.fakes.rank import in_world
from tests.support.labelled.tensors import GPU
from tests.support.streams.deadlock import list_degrees
from worker.rank.job_groups import JobGroups

RANKS = [(0, 2), (1, 2), (1, 3), (2, 4), (0, 8), (3, 8), (7, 8)]  # a rank, and how many there are


@pytest.fixture
def as_rank(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """This process as one of several ranks."""
    with in_world(*request.param):
        yield request.param


@pytest.mark.parametrize("as_rank", RANKS, indirect=True)
def test_a_rank_has_the_communicators_that_are_listed(as_rank: tuple[int, int]) -> None:
    """Under every plan; and connects each as it is used. Plans one after the other keep the group of all ranks."""
    rank, world = as_rank
    connected: list[tuple[tuple[int, ...], Communicator]] = []

    def shake_hands(group: dist.ProcessGroup, _device: torch.device, each: Communicator) -> None:
        connected.append((tuple(dist.get_process_group_ranks(group)), each))

    groups = JobGroups(GPU, Timeline(torch.device("cpu")))
    with patch.object(mesh, "shake_hands", shake_hands):
        for degrees in list_degrees(world):
            plan = ParallelPlan(**degrees)
            plan = replace(plan, weights=SHARED) if plan.replicas > 1 else plan
            connected.clear()
            groups.replica_axes.clear()
            built = groups.build_plan(plan)
            if plan.weights == SHARED:
                groups.replicas(plan)
            listed = [each for each in list_communicators(plan) if rank in each.ranks]
            own = [tuple(dist.get_process_group_ranks(group)) for group in groups._groups()]
            assert sorted(own) == sorted(each.ranks for each in listed), plan
            for ranks, each in connected:
                assert ranks == each.ranks and any(
                    each.pairs <= other.pairs for other in listed if other.ranks == ranks
                )
            assert all(built[axis].global_rank(built[axis].index) == rank for axis in plan.degrees())
    groups.close()


@pytest.mark.parametrize("as_rank", RANKS, indirect=True)
def test_weights_are_shared_by_the_ranks_that_have_the_same_ones_whatever_plan_was_before(
    as_rank: tuple[int, int],
) -> None:
    """Stages of cfg=2 × pipefusion=2 are the ranks 0, 2 and 1, 3; of pipefusion=2 × ulysses=2, 0, 1 and 2, 3."""
    rank, world = as_rank
    groups = JobGroups(GPU, Timeline(torch.device("cpu")))
    with patch.object(mesh, "shake_hands", lambda *_: None):
        for plan in [ParallelPlan(**degrees) for degrees in list_degrees(world)]:
            stages = [coordinates["pipefusion"] for coordinates in coordinates_of_ranks(plan)]
            alike = [other for other in range(plan.world_size) if stages[other] == stages[rank]]
            found = groups.replicas(plan)
            assert alike == (dist.get_process_group_ranks(found.group) if found.group else [rank]), plan
    groups.close()


@pytest.mark.parametrize(
    ("multiprocessors", "side_by_side", "channels"), [(132, 4, None), (108, 4, 16), (24, 3, 8), (16, 5, 2)]
)
def test_kernels_that_run_side_by_side_fit_a_card(
    multiprocessors: int, side_by_side: int, channels: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = SimpleNamespace(multi_processor_count=multiprocessors)
    nccl = SimpleNamespace(Options=lambda **given: SimpleNamespace(config=SimpleNamespace(max_ctas=None), **given))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: said)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", nccl, raising=False)
    options = group_options(GPU, "nccl", side_by_side)
    assert options.config.max_ctas == channels
    assert options.is_high_priority_stream, "or its kernels wait behind attention's (NVIDIA/nccl #1431)"
    assert group_options(GPU, "gloo", side_by_side) is None


def test_an_axis_without_a_row_of_its_own_is_not_guessed() -> None:
    with pytest.raises(KeyError, match="diagonal"):
        of_axis("diagonal", [0, 1])


def test_buffers_take_memory_where_ranks_exchange_something() -> None:
    """Of a message the receiver's card has most; who only sends has a page for each channel."""
    link = Communicator((0, 1), pairs=frozenset({(0, 1)}))
    assert link.count_bytes() == {0: 2 * (2 << 20), 1: 2 * (10 << 20)}
    assert not Communicator((0, 1)).count_bytes()
    for degrees, weights, mebibytes in (({}, WHOLE, 0), ({"ulysses": 8}, WHOLE, 216), ({"ulysses": 8}, SHARED, 264)):
        assert count_communicator_bytes(ParallelPlan(**degrees, weights=weights)) == mebibytes << 20
