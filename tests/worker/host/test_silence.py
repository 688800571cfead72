"""A rank that gives no sign of life is taken for dead if its process is stopped or gone, and else after a minute."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import PropertyMock

import pytest

from tests.support.group.direct_group import wait_until
from worker.host.session import LOADING_TIMES, Session
from worker.launch.process import explain_silence
from worker.settings import Settings
from worker.wire.operations import CALL
from worker.wire.protocol import NEVER

PIDS = (100, 200)
PATIENCE = 10.0
STOPPED = "it is stopped (SIGSTOP)"


class Machine:
    """Two ranks' processes, a clock, and a session that is told of silences.

    states: why each process gives no sign of life; empty if it may go on. unanswered: rank 0 does not answer. beats:
    what it tells of the ranks' silences. logged: what the session logs.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.now, self.unanswered, self.beats = 0.0, False, [0.1, 0.1]
        self.states, self.said = dict.fromkeys(PIDS, ""), ""
        self.logged = lambda: caplog.messages
        patch.setattr("worker.host.session.time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr("worker.host.session.explain_silence", self.states.__getitem__)
        patch.setattr("worker.host.session.collect_stacks", lambda *_: "")  # these numbers are no processes
        process = SimpleNamespace(folder=folder, exited=SimpleNamespace(wait=lambda *_: True))
        self.session = session = Session.__new__(Session)
        session.ranks, session.settings, session.operation = 2, Settings(silence_seconds=PATIENCE), None
        session.pids, session.silent, session.answered = [*PIDS], set(), 0.0
        given: Any = (SimpleNamespace(ask=self.answer), process, lambda reason: setattr(self, "said", reason.cause))
        session.control, session.process, session.end = given

    def answer(self, _question: Any, patience: float) -> dict[str, Any]:
        if self.unanswered:
            self.now += patience
            raise TimeoutError
        return {"pids": [*PIDS], "beats": self.beats, "exchanges": NEVER, "still": 0.0}

    def check(self, seconds: float, *beats: float) -> str:
        """Checks after so many seconds; returns why the session was ended, or nothing. beats: none for no answer."""
        self.now += seconds
        self.unanswered, self.beats = not beats, [*beats]
        self.session.check_life()
        return self.said


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Machine:
    return Machine(monkeypatch, tmp_path, caplog)


def silent(machine: Machine, until: float) -> str:
    """Has rank 1 fall silent for so long; returns why the session was ended."""
    said = machine.check(0.0, 0.1, 0.1)
    for place in range(1, int(until) + 1):
        said = said or machine.check(1.0, 0.1, place)
    return said


def test_a_request_may_end_while_its_progress_is_judged(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.session.began = 0.0
    monkeypatch.setattr(Session, "operation", PropertyMock(side_effect=[CALL.name, None]), raising=False)
    machine.session.check_progress({"exchanges": NEVER, "still": 0.0})
    assert not machine.said


def test_a_rank_that_is_stopped_is_dead(machine: Machine) -> None:
    machine.states[200] = STOPPED
    assert silent(machine, 10) == ""
    assert silent(machine, 12) == f"Rank 1 (process 200) has not answered for 10 s: {STOPPED}."


def test_a_rank_that_may_go_on_lives_for_a_while_and_that_is_logged_once(machine: Machine) -> None:
    assert silent(machine, LOADING_TIMES * PATIENCE) == ""
    (line,) = machine.logged()
    assert "Rank 1 has not answered for 11 s" in line
    assert silent(machine, LOADING_TIMES * PATIENCE) == ""
    assert len(machine.logged()) == 2, "another silence"
    assert "it is stopped, or stuck" in machine.check(1.0, 0.1, LOADING_TIMES * PATIENCE + 1)


def test_while_rank_0_may_go_on_nobody_is_judged_by_the_beats_that_it_has_not_collected(machine: Machine) -> None:
    machine.states[200] = STOPPED
    for place in range(20):
        assert not machine.check(1.0, place, place)
    assert "Ranks 0, 1 have given no sign of life" in machine.check(60.0, 80.0, 80.0)


def test_rank_0_is_judged_alike_where_it_does_not_answer(machine: Machine) -> None:
    assert not machine.check(1.0, 0.1, 0.1)
    for _ in range(5):
        assert not machine.check(1.0)
    machine.states[100] = STOPPED
    assert f"Rank 0 (process 100) has not answered for 10 s: {STOPPED}." in machine.check(1.0)


def test_ranks_of_other_machines_are_judged_by_their_silence_alone(machine: Machine) -> None:
    machine.session.settings = Settings(silence_seconds=PATIENCE, machines=("10.0.0.1", "10.0.0.2"))
    assert "Rank 1 (process 200) has not answered for 10 s: it is stopped, or stuck." in silent(machine, 20)


def test_the_system_tells_which_process_goes_on() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        assert explain_silence(process.pid) == explain_silence(os.getpid()) == ""
        process.send_signal(signal.SIGSTOP)
        assert wait_until(lambda: explain_silence(process.pid) == STOPPED, 60)
        process.kill()
        assert wait_until(lambda: explain_silence(process.pid) == "its process has ended", 60)
    finally:
        process.kill()
        process.wait()
    assert explain_silence(process.pid) == "its process has ended"


def test_a_rank_that_has_ended_is_seen_but_just_after_a_reply(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, each step of a sampling would wait for the system's answer."""
    monkeypatch.setattr("worker.host.session.is_alive", lambda pid: pid != 200)
    machine.session.replied, machine.now = 0.0, 0.01
    assert not machine.session.has_lost_rank
    machine.now = 1.0
    assert machine.session.has_lost_rank
