"""A worker group takes new settings with a restart, a stop, or more ranks; not when it dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


class PretendedSession:
    """A Session without processes."""

    end_reason, operation, given_up, pids = None, None, False, ()

    def __init__(self, ranks: int, device: str, settings: Settings, *_: Any) -> None:
        self.ranks, self.made_of, self.known = ranks, (ranks, device, settings), KnownState()
        self.process = SimpleNamespace(exited=threading.Event())
        self.control, self.last_status = self, {"state": "ready"}

    @property
    def is_over(self) -> bool:
        return self.process.exited.is_set()

    def end(self, reason: Explanation | None = None) -> Explanation:
        self.process.exited.set()
        return reason or Explanation("It died.")

    def ask(self, *_: Any) -> dict[str, Any]:
        return self.last_status

    def close(self) -> None:
        self.end()

    def do_nothing(self, *_: Any) -> None:
        pass

    await_cancelled = end_if_rank_gone = check_life = do_nothing


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerGroup:
    """Of one rank, with OLD settings; others come."""
    monkeypatch.setattr(supervision, "Session", PretendedSession)
    group = WorkerGroup("cuda", tmp_path, OLD)
    group.start(1, go_on)
    assert made(group) == (1, "cuda", OLD) and not group.status()["outdated"]
    group.supervisor.configure(Setup("cuda", NEW))
    return group


def made(group: WorkerGroup) -> tuple[int, str, Settings]:
    session: Any = group.session
    return session.made_of


def stop_and_start(group: WorkerGroup) -> None:
    group.stop()
    group.start(2, go_on)


@pytest.mark.parametrize(
    "change",
    [lambda group: group.restart(2, go_on), stop_and_start, lambda group: group.supervisor.ensure(2, go_on)],
    ids=["restart", "stop and start", "more ranks"],
)
def test_a_group_that_runs_takes_new_settings_with(change: Callable[[WorkerGroup], None], group: WorkerGroup) -> None:
    assert group.settings == OLD and group.status()["outdated"]
    change(group)
    assert made(group) == (2, "cuda", NEW) and group.settings == NEW
    assert group.supervisor.restarts.most == 2 and not group.status()["outdated"]


def test_a_group_that_dies_comes_back_with_the_settings_that_it_had(group: WorkerGroup) -> None:
    first: Any = group.session
    first.process.exited.set()
    assert wait_until(lambda: group.session is not first and group.status()["state"] == "ready", SECONDS)
    assert made(group) == (1, "cuda", OLD) and group.status()["outdated"]


def test_settings_that_are_changed_back_need_no_restart(group: WorkerGroup) -> None:
    group.supervisor.configure(Setup("cuda", OLD))
    assert not group.status()["outdated"]


def test_a_group_that_does_not_run_takes_them_at_once(group: WorkerGroup) -> None:
    group.stop()
    group.supervisor.configure(Setup("cpu", NEWER, Explanation("There is no torch.")))
    assert (group.device, group.settings) == ("cpu", NEWER)
    assert group.down == Explanation("There is no torch.") and not group.status()["outdated"]


def test_ranks_are_told_which_gpus_take_part(tmp_path: Path) -> None:
    for settings in (Settings(), NEWER):
        assert read_gpus(rank_environment("cuda", 2, tmp_path, settings)) == [*settings.gpus]


def test_rank_0_shares_comfyuis_card_unless_the_settings_leave_it_out(group: WorkerGroup) -> None:
    group.stop()
    for device, gpus, shares in (("cuda", (), True), ("cuda", (0, 1), True), ("cuda", (1,), False), ("cpu", (), False)):
        group.supervisor.configure(Setup(device, Settings(gpus=gpus)))
        assert group.is_on_comfyuis_card == shares
