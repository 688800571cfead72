"""A worker group takes new settings with a restart, a stop, or more ranks; not when it dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.group.direct_group import go_on, wait_until
from worker.errors import Explanation
from worker.host import supervision
from worker.host.client import WorkerGroup
from worker.host.known_state import KnownState
from worker.host.supervision import Setup
from worker.launch.torchrun import rank_environment, read_gpus
from worker.settings import Settings

OLD, NEW, NEWER = (Settings(gpus=gpus, restarts=len(gpus)) for gpus in ((0,), (0, 1), (0, 1, 2)))
SECONDS = 30.0


def pretend_session(ranks: int, device: str, settings: Settings, *_: Any) -> Mock:
    """A Session without processes."""
    exited, ready = threading.Event(), {"state": "ready"}
    session = Mock(end_reason=None, operation=None, given_up=False, has_lost_rank=False, pids=(), known=KnownState())
    session.configure_mock(ranks=ranks, made_of=(ranks, device, settings), last_status=ready, is_over=False)
    session.process.exited, session.control.ask.return_value = exited, ready

    def end(reason: Explanation | None = None) -> Explanation:
        exited.set()
        session.is_over = True
        return reason or Explanation("It died.")

    session.end.side_effect = session.close.side_effect = end
    return session


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerGroup:
    """Of one rank, with OLD settings; others come."""
    monkeypatch.setattr(supervision, "Session", pretend_session)
    group = WorkerGroup("cuda", tmp_path, OLD)
    group.start(1)
    assert made(group) == (1, "cuda", OLD) and not group.status()["outdated"]
    group.configure(Setup("cuda", NEW))
    return group


def made(group: WorkerGroup) -> tuple[int, str, Settings]:
    session: Any = group.session
    return session.made_of


@pytest.mark.parametrize(
    "change",
    [
        lambda group: group.restart(2),
        lambda group: (group.stop(), group.start(2)),
        lambda group: group.ensure(2, go_on),
    ],
    ids=["restart", "stop and start", "more ranks"],
)
def test_a_group_that_runs_takes_new_settings_with(change: Callable[[WorkerGroup], None], group: WorkerGroup) -> None:
    assert group.settings == OLD and group.status()["outdated"]
    change(group)
    assert made(group) == (2, "cuda", NEW) and group.settings == NEW
    assert group.restarts.most == 2 and not group.status()["outdated"]


def test_a_group_that_dies_comes_back_with_the_settings_that_it_had(group: WorkerGroup) -> None:
    first: Any = group.session
    first.is_over = True
    first.process.exited.set()
    assert wait_until(lambda: group.session is not first and group.status()["state"] == "ready", SECONDS)
    assert made(group) == (1, "cuda", OLD) and group.status()["outdated"]


def test_a_group_without_one_of_its_ranks_is_not_ready_though_torchrun_has_not_noticed(group: WorkerGroup) -> None:
    session: Any = group.session
    session.has_lost_rank = True
    assert session.last_status["state"] == "ready" and group.status()["state"] == "restarting"


def test_a_group_that_does_not_run_takes_them_at_once(group: WorkerGroup) -> None:
    group.stop()
    group.configure(Setup("cpu", NEWER, Explanation("There is no torch.")))
    assert (group.device, group.settings) == ("cpu", NEWER)
    assert group.down == Explanation("There is no torch.") and not group.status()["outdated"]


def test_ranks_are_told_which_gpus_take_part(tmp_path: Path) -> None:
    for settings in (Settings(), NEWER):
        assert read_gpus(rank_environment("cuda", 2, tmp_path, settings)) == [*settings.gpus]


def test_rank_0_shares_comfyuis_card_unless_the_settings_leave_it_out(group: WorkerGroup) -> None:
    group.stop()
    for device, gpus, shares in (("cuda", (), True), ("cuda", (0, 1), True), ("cuda", (1,), False), ("cpu", (), False)):
        group.configure(Setup(device, Settings(gpus=gpus)))
        assert group.is_on_comfyuis_card == shares
