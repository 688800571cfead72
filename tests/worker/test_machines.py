"""Two machines work as one group; the loss of the second is an error within seconds, and the next prompt is served."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from demo.host import REPOSITORY
from parallel_backend.weights.loading import ModelSource
from tests.support.cases.families import FAMILIES, SQUARE
from tests.support.group.first_machine import FAMILY
from tests.support.group.network import FIRST, SECOND, TOOLS, Network
from tests.support.links.namespaces import why_impossible
from tests.support.tiers import slow_but
from worker.launch.rendezvous import VERSION, Rendezvous, RendezvousError
from worker.launch.torchrun import Machines, ranks_a_machine, torchrun_command
from worker.settings import Settings, SettingsError

PORT = 29400
SILENCE = 3.0
DEADLINE = 10.0
PATIENCE = 120.0
ULYSSES = {"ulysses": 2}
PLANS = {"ulysses": (ULYSSES,), "cfg": ({"cfg": 2},), "four ranks": ({"cfg": 2, "ulysses": 2},)}


@pytest.fixture(scope="module")
def network(own_ranks: None) -> Iterator[Network]:
    if reason := why_impossible(*TOOLS):
        pytest.fail(f"{reason}: the tests of two machines run as root on Linux, with iproute2 installed")
    with Network() as network:
        yield network


class First:
    """The machine with ComfyUI."""

    def __init__(self, network: Network, folder: Path) -> None:
        machines = f"{FIRST}:{PORT},{SECOND}"
        command = [
            sys.executable,
            "-m",
            "tests.support.group.first_machine",
            machines,
            str(SILENCE),
            str(folder / "logs"),
        ]
        self.popen = subprocess.Popen(
            network.on("first", command), cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.file = folder / "prediction.safetensors"

    def begin(self, source: ModelSource, plan: dict[str, int], **order: bool) -> None:
        line = {"source": source.to_json(), "plan": plan, "file": str(self.file), **order}
        self.popen.stdin.write(json.dumps(line) + "\n")
        self.popen.stdin.flush()

    def answer(self) -> dict:
        hung = threading.Timer(PATIENCE, self.popen.kill)
        hung.start()
        line = self.popen.stdout.readline()
        hung.cancel()
        assert line, f"no answer within {PATIENCE} s"
        return json.loads(line)

    def forward(self, source: ModelSource, plan: dict[str, int]) -> dict:
        self.begin(source, plan)
        return self.answer()

    def run_endlessly(self, source: ModelSource, plan: dict[str, int]) -> list[int]:
        """The process ids of the ranks, that of the second machine last; `answer` then waits for the end of it."""
        self.begin(source, plan, endlessly=True)
        return self.answer()["pids"]

    def prediction(self) -> torch.Tensor:
        return load_file(self.file)["prediction"]

    def close(self) -> None:
        self.popen.stdin.close()
        self.popen.wait(30)


class Second:
    """The machine that lends itself. hidden: a folder that it does not have."""

    def __init__(self, network: Network, log: Path, hidden: Path) -> None:
        self.log = log
        join = [sys.executable, "-m", "worker.join", f"{FIRST}:{PORT}"]
        command = ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden), *join]
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                network.on("second", command), cwd=REPOSITORY, stdout=out, stderr=subprocess.STDOUT
            )

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.popen.pid).children(recursive=True)

    def said(self) -> str:
        return self.log.read_text()

    def end(self, number: int = signal.SIGTERM) -> list[psutil.Process]:
        """Ends the program, if it runs, by a signal; returns those of its processes that live five seconds later."""
        if self.popen.poll() is not None:
            return []
        processes = self.processes()
        self.popen.send_signal(number)
        self.popen.wait(10)
        return psutil.wait_procs(processes, 5)[1]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSource, ModelSource]:
    """A tiny model that both machines have, and its copy that only the first has."""
    return tuple(source_in(tmp_path_factory.mktemp(name)) for name in ("both", "first-only"))


def source_in(folder: Path) -> ModelSource:
    family = FAMILIES[FAMILY]
    family.save(folder)
    return ModelSource(family.model_class, family.config, tuple(str(path) for path in folder.glob("*.safetensors")))


@pytest.fixture(scope="module")
def reference() -> torch.Tensor:
    """What one process on plain diffusers predicts."""
    family = FAMILIES[FAMILY]
    with torch.no_grad():
        return family.reference(family.build(), *family.inputs(*family.shapes[SQUARE]))


class Pair:
    """Both machines, of which the second may be replaced."""

    def __init__(self, network: Network, folder: Path, sources: tuple[ModelSource, ModelSource]) -> None:
        self.network, self.folder = network, folder
        self.both, self.first_only = sources
        self.first = First(network, folder)
        self.join()

    def join(self) -> None:
        self.second = Second(self.network, self.folder / "second.log", Path(self.first_only.files[0]).parent)


@pytest.fixture(scope="module")
def pair(
    network: Network, sources: tuple[ModelSource, ModelSource], tmp_path_factory: pytest.TempPathFactory
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
    assert pair.first_only.files[0] in answer["error"]
    assert answer["pids"] == before["pids"], "the group lives"


def test_ranks_that_do_not_divide_over_the_machines_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"3 ranks does not divide over 2 machines\.\n\nChoose one of 2 or 4 ranks"):
        ranks_a_machine(3, Settings(machines=(f"{FIRST}:{PORT}", SECOND)))


@pytest.mark.parametrize(
    "machines", [(FIRST, SECOND), (f"{FIRST}:{PORT}",), (f"{FIRST}:{PORT}", f"{SECOND}:1"), (f"{FIRST}:1", FIRST)]
)
def test_a_setting_that_names_no_machines_to_meet_is_refused(machines: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match=f"like {FIRST.split('.')[0]}"):
        Machines.parse(machines)


def kill_its_rank(pair: Pair, pids: list[int]) -> None:
    os.kill(pids[1], signal.SIGKILL)


def kill_a_rank_here(pair: Pair, pids: list[int]) -> None:
    os.kill(pids[0], signal.SIGKILL)


def kill_the_program(pair: Pair, pids: list[int]) -> None:
    assert pair.second.end(signal.SIGKILL) == []


def pull_the_cable(pair: Pair, pids: list[int]) -> None:
    pair.network.cable("down")


NAME = f"machine {SECOND} (second)"
# How the machine is lost, how long that is silent, and what the error says.
LOSSES = {
    "its rank is killed": (kill_its_rank, 0, f"On the {NAME}: Rank 1 (process {{}}) was killed by SIGKILL"),
    "its program is killed": (kill_the_program, 0, f"The {NAME} has closed the connection"),
    "its cable is pulled": (pull_the_cable, SILENCE, f"The {NAME} has given no sign of life for {SILENCE:g} s"),
    "the first one's rank is killed": (kill_a_rank_here, 0, "Rank 0 "),
}


def all_end(pids: list[int], seconds: float) -> bool:
    return psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], seconds)[1] == []


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


def test_machines_that_do_not_come_are_named_with_the_command_to_run_there(meeting: Rendezvous) -> None:
    with pytest.raises(RendezvousError, match=rf"127.0.0.2 did not .*\n\n.* python -m worker.join 127.0.0.1:{PORT}"):
        meeting.gather({}, SILENCE, seconds=0.1)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("127.0.0.3", hello(VERSION, "stranger")),
        ("127.0.0.2", b"GET / HTTP/1.1\r\n\r\n"),
        ("127.0.0.2", b"[1]\n"),
        ("127.0.0.2", b"x" * (1 << 20)),
        ("127.0.0.2", hello(VERSION + 1, "newer")),
    ],
    ids=["of an address not named", "no JSON", "no object", "without end", "another version"],
)
def test_a_stranger_is_turned_away_and_the_named_machine_is_still_met(
    address: str, text: bytes, meeting: Rendezvous
) -> None:
    with say_from(address, text), say_from("127.0.0.2", hello(VERSION, "second")) as known:
        meeting.gather({"ranks": 1}, SILENCE, seconds=10)
        start = json.loads(known.makefile("rb").readline())
    assert start == {"ranks": 1, "machine": 1, "machines": 2, "silence": SILENCE}


def test_a_port_that_is_taken_is_an_error_that_says_so(meeting: Rendezvous) -> None:
    with pytest.raises(RendezvousError, match="a port that nothing else uses"):
        Rendezvous(meeting.machines)


def test_one_machine_needs_no_setting(tmp_path: Path) -> None:
    command = torchrun_command(2, tmp_path, Settings())
    assert not [argument for argument in command if "machines" in argument]
