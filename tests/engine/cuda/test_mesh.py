"""The groups of a mesh: built again as often as wanted, given up in one order, and proven to carry data."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from parallel_backend.errors import GroupError
from parallel_backend.groups import handshake, mesh
from parallel_backend.groups.communicators import Communicator
from parallel_backend.groups.timeline import Timeline
from parallel_backend.plan import ParallelPlan
from tests.support.fakes.rank import in_world
from tests.support.ranks.pool import RankPool
from worker.rank import job_groups

CPU = torch.device("cpu")
PLAN = {"pipefusion": 2, "ring": 2, "ulysses": 2}
WORLD = 8
CONNECTION = (8, ("127.0.0.1", 1), ("127.0.0.1", 2))


def test_a_mesh_of_several_axes_is_built_again_and_given_up_in_one_order(ranks: RankPool, tmp_path: Path) -> None:
    """Names that come again make a second building wait for ever; so do ranks that give up groups in another order."""
    ranks.run(WORLD, "cuda.mesh_rank", json.dumps(PLAN), str(tmp_path / "names"))
    found = [json.loads((tmp_path / f"names.{rank}").read_text()) for rank in range(WORLD)]
    for builds in found:
        names = [name for build in builds for name in build]
        assert len(names) == len(set(names)), "a name comes again"
    for build in zip(*found, strict=True):
        for one, other in itertools.combinations(build, 2):
            shared = set(one) & set(other)
            assert [name for name in one if name in shared] == [name for name in other if name in shared]


def cut_groups(aborts: Sequence[Callable[[], object]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order, if a job is cut whose groups are aborted so, and whose gloo group has a socket."""
    done: list[str] = []
    connection = SimpleNamespace(shutdown=lambda _how: done.append("shutdown"))
    monkeypatch.setattr(job_groups, "list_connections", lambda: {(0, "here", "there"), (1, "here", "elsewhere")})
    sockets = SimpleNamespace(socket=lambda fileno: (os.close(fileno), nullcontext(connection))[1], SHUT_RDWR=0)
    monkeypatch.setattr(job_groups, "socket", sockets)

    def group(name: int, abort: Callable[[], object]) -> SimpleNamespace:
        return SimpleNamespace(group_name=str(name), abort=lambda: (abort(), done.append("abort")))

    several = [group(name, abort) for name, abort in enumerate(aborts)]
    groups = job_groups.JobGroups(torch.device("cuda", 0), Timeline(CPU))
    groups.mesh, groups.sockets, groups.job = (
        SimpleNamespace(groups=lambda: several),
        {(0, "here", "there"), (1, "here", "closed")},
        3,
    )
    groups.cut(2)  # another job
    assert done == []
    groups.cut(3)
    return done


def test_nccl_is_aborted_before_gloos_sockets_are_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's own threads end the process where what they use is gone; its sockets are its own."""
    assert cut_groups([bool, bool], monkeypatch) == ["abort", "abort", "shutdown"]


def test_an_abort_may_wait_for_the_kernel_of_another_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NCCL's does: it frees memory of the device, and so waits for what runs there. A receive that is pending on
    another group ends only once that group is aborted, too."""
    both = threading.Barrier(2, timeout=5)  # raises if one comes after the other
    assert cut_groups([both.wait, both.wait], monkeypatch) == ["abort", "abort", "shutdown"]


@pytest.mark.parametrize("change", [{"attention": "native"}, {"compile": "on"}, {"weights": "shared"}], ids=str)
def test_only_other_degrees_or_devices_build_groups_again(
    change: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not another kernel, compiled blocks or other places of weights."""
    with in_world(1, 4):
        groups = job_groups.JobGroups(torch.device("cuda", 0), Timeline(CPU))
        monkeypatch.setattr(mesh, "shake_hands", lambda *_: None)
        plan = ParallelPlan(ring=2, ulysses=2)
        before = groups.build_plan(plan).groups()
        built: list[object] = []
        monkeypatch.setattr(mesh, "new_group", lambda *_, **__: built.append(0))
        after = groups.build_plan(replace(plan, **change))
        assert after.plan == replace(plan, **change) and after.groups() == before and not built
        groups.build_plan(ParallelPlan(cfg=2, ring=2))
        assert built


@pytest.mark.parametrize(("device", "kept"), [(torch.device("cuda", 0), set()), (CPU, {CONNECTION})], ids=str)
def test_sockets_that_nccl_opens_are_left_to_it(
    device: torch.device, kept: set[tuple], one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = iter([set(), {CONNECTION}])
    monkeypatch.setattr(job_groups, "list_connections", lambda: next(opened))
    groups = job_groups.JobGroups(device, Timeline(CPU))
    groups.world_axis(device)
    assert groups.sockets == kept


def test_gloos_groups_split_nothing_of_nccls(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a rank outside of one would have NCCL do, and wait for its members."""
    monkeypatch.setattr(dist.distributed_c10d, "_get_split_source", lambda _: pytest.fail("the default group is split"))
    bound = dist.group.WORLD.bound_device_id = torch.device("cuda", 0)
    mesh.new_group(CPU, [0])
    assert dist.group.WORLD.bound_device_id == bound
    with pytest.raises(pytest.fail.Exception, match="is split"):
        mesh.new_group(torch.device("cuda", 0), [0])


@pytest.mark.parametrize(
    ("is_completed", "words"),
    [(lambda: False, "nothing came within"), (lambda: (_ for _ in ()).throw(RuntimeError("unhandled")), "unhandled")],
    ids=["silence", "an error"],
)
def test_devices_that_cannot_exchange_data_are_named_with_what_to_try(
    is_completed: object, words: str, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.05)
    work = SimpleNamespace(is_completed=is_completed)
    monkeypatch.setattr(dist, handshake.ALL_GATHER, lambda *_, **__: work)
    one = Communicator((0,), gathers=True)
    with pytest.raises(GroupError, match=rf"of the ranks 0 cannot exchange data .*rank 0's, cpu.*{words}") as raised:
        handshake.shake_hands(dist.group.WORLD, CPU, one)
    assert "a firewall" in str(raised.value)
    with monkeypatch.context() as labelled, pytest.raises(GroupError, match="NCCL_P2P_DISABLE=1"):
        labelled.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))
        labelled.setattr(handshake, "name_of", str)
        handshake.shake_hands(dist.group.WORLD, torch.device("cuda", 0), one)
