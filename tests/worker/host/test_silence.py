"""A rank that gives no sign of life is taken for dead if its process does nothing, and not if it only lacks a CPU."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.support.group.direct_group import wait_until
from worker.host import silence
from worker.host.session import LOADING_TIMES, Session
from worker.settings import Settings
from worker.wire.protocol import NEVER

PIDS = (100, 200)
PATIENCE = 10.0
TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """Figures of two ranks' processes in files like those of /proc, a clock, and a session that is told of silences.

    unanswered: rank 0 does not answer. beats: what it tells of the ranks' silences. logged: what the session logs.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.folder, self.now, self.unanswered, self.beats = folder, 0.0, False, [0.1, 0.1]
        self.logged = lambda: caplog.messages
        patch.setattr(silence, "PROC", folder)
        for module in ("silence", "session"):
            patch.setattr(f"worker.host.{module}.time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr("worker.host.session.collect_stacks", lambda *_: "")  # these numbers are no processes
        process = SimpleNamespace(folder=folder, exited=SimpleNamespace(wait=lambda *_: True))
        self.session = session = Session.__new__(Session)
        session.ranks, session.settings, session.operation = 2, Settings(silence_seconds=PATIENCE), None
        session.pids, session.silences, session.answered = [*PIDS], {}, 0.0
        given: Any = (SimpleNamespace(ask=self.answer), process, lambda reason: setattr(self, "said", reason.cause))
        session.control, session.process, session.end = given
        self.said = ""
        for pid in PIDS:
            self.run(pid)

    def answer(self, _question: Any, patience: float) -> dict[str, Any]:
        if self.unanswered:
            self.now += patience
            raise TimeoutError
        return {"pids": [*PIDS], "beats": self.beats, "exchanges": NEVER, "still": 0.0}

    def run(self, pid: int, state: str = "S", ran: float = 0.0, waited: float | None = 0.0, thread: int = 1) -> None:
        """Writes what a thread has run and waited so far, in seconds. waited: None where the kernel does not count."""
        for number, letter, seconds in ((pid, state, 0.0), (pid + thread, state, ran)):
            task = self.folder / f"{pid}/task/{number}"
            task.mkdir(parents=True, exist_ok=True)
            fields = [letter, *["0"] * 10, str(int(seconds * TICKS)), "0", *["0"] * 10]
            (task / "stat").write_text(f"{number} (a rank) of) {' '.join(fields)}\n")
            counted = task / "schedstat"
            if waited is None:
                counted.unlink(missing_ok=True)
            else:
                counted.write_text(f"{int(seconds * 1e9)} {int(waited * (number != pid) * 1e9)} 7\n")

    def check(self, seconds: float, *beats: float) -> str:
        """Checks after so many seconds; returns why the session was ended, or nothing. beats: none for no answer."""
        self.now += seconds
        self.unanswered, self.beats = not beats, [*beats]
        self.session.check_life()
        return self.said


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Machine:
    return Machine(monkeypatch, tmp_path, caplog)


def silent(machine: Machine, rank: int, until: float, change: Callable[[], None]) -> str:
    """Has a rank fall silent for so long, with a change of its process meanwhile; returns why the session was ended."""
    assert not machine.check(0.0, 0.1, 0.1)
    for place in range(1, int(until) + 1):
        change()
        said = machine.check(1.0, *([place, 0.1] if rank == 0 else [0.1, place]))
        if said:
            return said
    return ""


def test_a_rank_whose_process_does_nothing_is_dead(machine: Machine) -> None:
    said = silent(machine, 1, 12, lambda: machine.run(200, "S", ran=0.2 + machine.now / 100))
    assert re.fullmatch(
        r"Rank 1 \(process 200\) has not answered for 10 s: in the last 5 s its process ran for 0\.\d s and waited "
        r"0\.0 s for a CPU\.",
        said,
    )
    assert machine.now == 11.0


@pytest.mark.parametrize(
    ("state", "seen"), [("T", "it is stopped (SIGSTOP)"), ("t", "a debugger has stopped it"), ("Z", "has ended")]
)
def test_a_rank_that_is_stopped_is_dead_however_much_it_ran_before(machine: Machine, state: str, seen: str) -> None:
    said = silent(machine, 1, 12, lambda: machine.run(200, state, ran=machine.now))
    assert f"has not answered for 10 s: {seen}." in said.replace("its process ", "")


def test_a_rank_that_is_gone_or_of_which_the_system_does_not_tell_is_dead(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(tmp_path / "200")
    assert "its process has ended" in silent(machine, 1, 12, lambda: None)
    machine.said = ""
    monkeypatch.setattr(silence, "PROC", tmp_path / "missing")
    assert "it is stopped, or stuck" in machine.check(1.0, 0.1, 13.0)


@pytest.mark.parametrize(
    "progress",
    [
        pytest.param(lambda machine: machine.run(200, ran=0.05 * machine.now, waited=0.9 * machine.now), id="waits"),
        pytest.param(lambda machine: machine.run(200, ran=machine.now, waited=None), id="computes"),
        pytest.param(lambda machine: machine.run(200, "R", waited=None), id="waits, and the kernel does not count it"),
        pytest.param(lambda machine: machine.run(200, "D"), id="waits for a disk"),
    ],
)
def test_a_rank_that_computes_or_waits_for_a_cpu_lives_and_that_is_logged_once(
    machine: Machine, progress: Callable[[Machine], None]
) -> None:
    assert not silent(machine, 1, 40, lambda: progress(machine))
    (line,) = machine.logged()
    assert re.search(r"Rank 1 has not answered for 11 s: in the last 5 s its process ran for \d\.\d s and waited", line)
    assert not machine.check(1.0, 0.1, 0.2)
    assert not silent(machine, 1, 40, lambda: progress(machine))
    assert len(machine.logged()) == 2, "another silence"


def test_a_rank_that_computes_for_ever_without_an_answer_is_dead_in_the_end(machine: Machine) -> None:
    said = silent(machine, 1, 100, lambda: machine.run(200, "R", ran=machine.now))
    assert "Rank 1 (process 200) has not answered for 10 s: in the last 55 s its process ran for 55.0 s" in said
    assert machine.now == LOADING_TIMES * PATIENCE + 1


def test_while_rank_0_waits_for_a_cpu_nobody_is_judged_by_the_beats_that_it_has_not_collected(machine: Machine) -> None:
    for place in range(20):
        machine.run(100, ran=0.01 * place, waited=0.9 * place)
        assert not machine.check(1.0, place, place)
    assert "Ranks 0, 1 have given no sign of life" in machine.check(60.0, 80.0, 80.0)


def test_rank_0_is_judged_alike_where_it_does_not_answer(machine: Machine) -> None:
    assert not machine.check(1.0, 0.1, 0.1)
    for place in range(1, 6):
        machine.run(100, ran=0.01 * place, waited=5.4 * place)
        assert not machine.check(1.0)
    machine.run(100, "T", ran=0.1, waited=30.0)
    assert "Rank 0 (process 100) has not answered for 10 s: it is stopped (SIGSTOP)." in machine.check(1.0)


def test_ranks_of_other_machines_are_judged_by_their_silence_alone(machine: Machine) -> None:
    machine.session.settings = Settings(silence_seconds=PATIENCE, machines=("10.0.0.1", "10.0.0.2"))
    assert "Rank 1 (process 200) has not answered for 10 s: it is stopped, or stuck." in silent(
        machine, 1, 20, lambda: machine.run(200, ran=machine.now)
    )


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system calls have other numbers elsewhere")
def test_a_process_that_waits_for_a_program_to_start_is_found_to_live() -> None:
    """As Python starts programs by vfork, all of its threads stand still until the program begins."""
    vfork = "ctypes.PyDLL(None).syscall(56, 0x4011, 0, 0, 0, 0)"
    code = f"import ctypes, os, time; {vfork} or time.sleep(1000); os._exit(0)"
    started = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        assert wait_until(lambda: bool(psutil.Process(started.pid).children()), 60)
        looks = silence.Silence(started.pid)
        time.sleep(1.0)
        assert looks.look()[0]
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def test_this_process_is_found_to_run() -> None:
    """By the system's own files."""
    threads = silence.list_threads(os.getpid())
    assert threads[os.getpid()].state == "R" and threads[os.getpid()].ran > 0
    assert silence.Silence(os.getpid()).look()[0]
