"""Two machines work as one group; the loss of the second is an error within seconds, and the next prompt is served."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from tests.support.group.direct_group import DIT, source_of, wait_until
from tests.support.group.machines import FIRST, PORT, SECOND, SILENCE, ULYSSES, First, Network, Second, predicted_by_one
from tests.support.tiers import slow_but
from worker import join
from worker.comfyui.source import HostSource
from worker.errors import WorkerGroupError
from worker.launch import peer
from worker.launch.process import is_alive
from worker.launch.rendezvous import VERSION, Rendezvous, Start
from worker.launch.torchrun import Machines, ranks_a_machine
from worker.settings import Settings, SettingsError

DEADLINE = 20.0
PLANS = {"ulysses": (ULYSSES,), "cfg": ({"cfg": 2},), "four ranks": ({"cfg": 2, "ulysses": 2},)}


@pytest.fixture(scope="module")
def reference() -> torch.Tensor:
    return predicted_by_one()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[HostSource, HostSource]:
    """A tiny model that both machines have, and its copy that only the first has."""
    return tuple(source_of(DIT, tmp_path_factory.mktemp(name)) for name in ("both", "first-only"))


class Pair:
    """Both machines, of which the second may be replaced."""

    def __init__(self, network: Network, folder: Path, sources: tuple[HostSource, HostSource]) -> None:
        self.network, self.folder = network, folder
        self.both, self.first_only = sources
        self.first = First(network, folder)
        self.join()

    def join(self) -> None:
        self.second = Second(self.network, self.folder / "second.log", Path(self.first_only.file))


@pytest.fixture(scope="module")
def pair(
    network: Network, sources: tuple[HostSource, HostSource], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    pair = Pair(network, tmp_path_factory.mktemp("machines"), sources)
    try:
        yield pair
    finally:
        pair.first.close()
        assert pair.second.end() == []


@pytest.mark.parametrize("plan", slow_but(("ulysses",), PLANS))
def test_both_machines_together_predict_what_one_process_does(
    plan: dict[str, int], pair: Pair, reference: torch.Tensor
) -> None:
    """The second machine follows the plan, and the number of ranks that it brings."""
    answer = pair.first.forward(pair.both, plan)
    assert answer["error"] == ""
    ours = [pid for pid in answer["pids"] if psutil.Process(pid) in pair.second.processes()]
    ranks = len(answer["pids"])
    assert ours == answer["pids"][ranks // 2 :], "the first machine has the first ranks, the second the others"
    error = (pair.first.prediction() - reference).abs().max() / reference.abs().max()
    assert error <= 1e-5


def test_a_file_that_the_second_machine_lacks_is_refused_in_its_name(pair: Pair) -> None:
    before = pair.first.forward(pair.both, ULYSSES)
    answer = pair.first.forward(pair.first_only, ULYSSES)
    assert answer["kind"] == "RequestRefused"
    assert "On the machine second:" in answer["error"]
    assert pair.first_only.file in answer["error"]
    assert answer["pids"] == before["pids"], "the group lives"


def test_ranks_that_do_not_divide_over_the_machines_are_refused() -> None:
    with pytest.raises(
        SettingsError, match=r"3 ranks does not divide over 2 machines\.\n\nChoose a plan of 2 or 4 ranks"
    ):
        ranks_a_machine(3, Settings(machines=(f"{FIRST}:{PORT}", SECOND)))


@pytest.mark.parametrize(
    "machines", [(FIRST, SECOND), (f"{FIRST}:{PORT}",), (f"{FIRST}:{PORT}", f"{SECOND}:1"), (f"{FIRST}:1", FIRST)]
)
def test_a_setting_that_names_no_machines_to_meet_is_refused(machines: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match=f"like {FIRST.split('.')[0]}"):
        Machines.parse(machines)


def kill_its_rank(_pair: Pair, pids: list[int]) -> None:
    os.kill(pids[1], signal.SIGKILL)


def kill_the_program(pair: Pair, _pids: list[int]) -> None:
    assert pair.second.end(signal.SIGKILL) == []


NAME = f"machine {SECOND} (second)"
# How the machine is lost, how long that is silent, and what the error says.
LOSSES = {
    "its rank is killed": (kill_its_rank, 0, f"On the {NAME}: Rank 1 (process {{}}) was killed by SIGKILL"),
    "its program is killed": (kill_the_program, 0, f"The {NAME} has closed the connection"),
    "its cable is pulled": (
        lambda pair, _pids: pair.network.cable("down"),
        SILENCE,
        f"The {NAME} has given no sign of life for {SILENCE:g} s",
    ),
    "the first one's rank is killed": (lambda _pair, pids: os.kill(pids[0], signal.SIGKILL), 0, "Rank 0 "),
}


def all_end(pids: list[int], seconds: float) -> bool:
    return wait_until(lambda: not any(map(is_alive, pids)), seconds)


def assert_served(pair: Pair, reference: torch.Tensor) -> None:
    assert pair.first.forward(pair.both, ULYSSES)["error"] == ""
    assert (pair.first.prediction() - reference).abs().max() <= 1e-5 * reference.abs().max()


@pytest.mark.parametrize(("lose", "silent", "said"), slow_but(("its rank is killed", "its cable is pulled"), LOSSES))
def test_a_loss_in_a_job_is_an_error_within_seconds_and_the_next_request_is_served(
    lose: Callable[[Pair, list[int]], None], silent: float, said: str, pair: Pair, reference: torch.Tensor
) -> None:
    pids = pair.first.run_endlessly(pair.both, ULYSSES)
    lost_at = time.time()
    lose(pair, pids)
    answer = pair.first.answer()
    print(f"error after {answer['at'] - lost_at:.2f} s: {answer['error']}")
    assert answer["kind"] == "WorkerGroupError"
    assert said.format(pids[1]) in answer["error"]
    assert answer["at"] - lost_at <= silent + DEADLINE
    assert all_end(pids, silent + DEADLINE), "ranks of a group that lost a machine still run"
    print(f"all ranks ended after {time.time() - lost_at:.2f} s")
    pair.network.cable("up")
    if pair.second.popen.poll() is not None:
        pair.join()
    assert_served(pair, reference)


@pytest.mark.slow
def test_the_loss_of_an_idle_machine_ends_the_group_before_the_next_request(
    pair: Pair, reference: torch.Tensor
) -> None:
    pids = pair.first.forward(pair.both, ULYSSES)["pids"]
    kill_its_rank(pair, pids)
    assert all_end(pids, DEADLINE)
    assert_served(pair, reference)


@pytest.mark.slow
def test_the_second_outlives_the_first_and_ctrl_c_leaves_no_process(pair: Pair, reference: torch.Tensor) -> None:
    pids = pair.first.forward(pair.both, ULYSSES)["pids"]
    host = psutil.Process(pair.first.popen.pid)
    host.kill()
    host.wait(10)
    assert all_end(pids, DEADLINE)
    pair.first = First(pair.network, pair.folder)
    assert_served(pair, reference)
    assert pair.second.end(signal.SIGINT) == []
    assert pair.second.said().splitlines()[-1] == "[ParallelDiT] ended"


@pytest.fixture
def meeting() -> Iterator[Rendezvous]:
    """On the loopback, whose every address can be spoken from."""
    meeting = Rendezvous(Machines("127.0.0.1", PORT, ("127.0.0.2",)))
    yield meeting
    meeting.listener.close()


def hello(version: int, host: str) -> bytes:
    return json.dumps({"version": version, "host": host}).encode() + b"\n"


def say_from(address: str, text: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", PORT), 5, source_address=(address, 0))
    connection.sendall(text)
    return connection


def test_a_machine_whose_name_is_known_later_is_met_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod has a name and an address once it runs."""
    known = {"127.0.0.1": "127.0.0.1"}

    def look_up(name: str) -> str:
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known[name]

    monkeypatch.setattr(socket, "gethostbyname", look_up)
    meeting = Rendezvous(Machines("127.0.0.1", PORT, ("pod",)))
    with contextlib.closing(meeting.listener):
        with pytest.raises(WorkerGroupError, match="pod did not join within .* The name pod is not known here"):
            meeting.gather({}, SILENCE, seconds=0.1)
        known["pod"] = "127.0.0.2"
        with say_from("127.0.0.2", hello(VERSION, "pod")):
            meeting.gather({}, SILENCE, seconds=10)
        assert list(meeting.peers) == [1]


def test_machines_that_do_not_come_are_named_with_the_command_to_run_there(meeting: Rendezvous) -> None:
    with pytest.raises(WorkerGroupError, match=rf"127.0.0.2 did not .*\n\n.* python -m worker.join 127.0.0.1:{PORT}"):
        meeting.gather({}, SILENCE, seconds=0.1)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("127.0.0.3", hello(VERSION, "stranger")),
        ("127.0.0.2", b"GET / HTTP/1.1\r\n\r\n"),
        ("127.0.0.2", b"[1]\n"),
        ("127.0.0.2", b"x" * (1 << 20)),
        ("127.0.0.2", hello(VERSION + 1, "newer")),
        ("127.0.0.2", b"[" * 60_000 + b"\n"),
        ("127.0.0.2", hello(VERSION, "cut")[:-1].ljust(1 << 16) + b"\n"),
    ],
    ids=["of an address not named", "no JSON", "no object", "without end", "another version", "nested", "too long"],
)
def test_a_stranger_is_turned_away_and_the_named_machine_is_still_met(
    address: str, text: bytes, meeting: Rendezvous
) -> None:
    with say_from(address, text), say_from("127.0.0.2", hello(VERSION, "second")) as known:
        meeting.gather({"ranks": 1}, SILENCE, seconds=10)
        start = json.loads(known.makefile("rb").readline())
    assert start == {"ranks": 1, "machine": 1, "machines": 2, "silence": SILENCE}


def test_a_hello_that_never_ends_is_given_up(meeting: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and the line does not."""
    monkeypatch.setattr(peer, "HELLO_SECONDS", 1.0)
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not ended.wait(0.1):
                connection.sendall(b" ")

    with say_from("127.0.0.2", b"") as slow:
        dripping = threading.Thread(target=drip, args=(slow,))
        dripping.start()
        with say_from("127.0.0.2", hello(VERSION, "second")):
            meeting.gather({"ranks": 1}, SILENCE, seconds=30)
        ended.set()
        dripping.join()


def test_a_machine_that_says_something_else_after_the_start_is_lost(meeting: Rendezvous) -> None:
    """Nobody would watch it any more."""
    told: list[str] = []
    with say_from("127.0.0.2", hello(VERSION, "second")) as known:
        meeting.gather({"ranks": 1}, SILENCE, seconds=10)
        meeting.watch(lambda reason, _of_another: told.append(reason.cause))
        known.sendall(b'{"hello": 1}\n')
        assert wait_until(lambda: bool(told), DEADLINE)
    assert told == ["On the machine 127.0.0.2 (second): It said {'hello': 1}."]


START = {
    "ranks": 2,
    "machine": 1,
    "machines": 2,
    "device": "cpu",
    "store": "10.0.0.1:4711",
    "token": "a" * 64,
    "silence": 10.0,
}
WRONG = [
    {"ranks": 1000}, {"ranks": 0}, {"ranks": True}, {"ranks": "2"}, {"ranks": None}, {"machine": 0}, {"machine": 2},
    {"machines": 2.0}, {"device": "--help"}, {"device": None}, {"store": "--help"}, {"store": None}, {"token": 1},
    {"silence": math.nan}, {"silence": math.inf}, {"silence": 0}, {"silence": "10"},
]  # fmt: skip


def test_a_machine_that_cannot_start_ranks_says_so_and_waits_for_the_next_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaner has removed its folder, and its disk is full."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = peer.PeerConnection(socket.create_connection(listener.getsockname()))
        asked = [(peer.PeerConnection(listener.accept()[0]), Start(**START))]
    folders: list[Path] = []

    def ask(*_: object) -> tuple[peer.PeerConnection, Start]:
        if not asked:
            raise join.StopSignal
        return asked.pop()

    def start(_command: object, _environment: object, folder: Path) -> None:
        folders.append(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(join, "ask", ask)
    monkeypatch.setattr(join, "WorkerProcess", start)
    with pytest.raises(join.StopSignal):
        join.serve("127.0.0.1", 1, tmp_path / "gone")
    assert "No space left" in first.receive()["failed"]["cause"]
    first.close()
    assert folders[0].is_relative_to(tmp_path) and not folders[0].is_relative_to(tmp_path / "gone")


def test_an_impossible_start_is_refused() -> None:
    assert Start.from_json(START, "10.0.0.1")._asdict() == START
    for change in WRONG:
        with pytest.raises(WorkerGroupError, match="asks for something that this machine cannot start"):
            Start.from_json({**START, **change}, "10.0.0.1")
    with pytest.raises(WorkerGroupError):
        Start.from_json({}, "10.0.0.1")


def test_a_port_that_is_taken_is_an_error_that_says_so(meeting: Rendezvous) -> None:
    with pytest.raises(WorkerGroupError, match="cannot listen for the others at"):
        Rendezvous(meeting.machines)
