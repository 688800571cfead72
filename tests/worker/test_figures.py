"""The heartbeat and the control channel go on while a rank waits in an allocation: they ask neither torch nor CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from parallel_backend.groups.timeline import Timeline
from tests.support.group.direct_group import wait_until
from tests.support.group.one_rank import close_server
from worker.host import control_client
from worker.host.control_client import ControlClient
from worker.rank.agreement import AgreementGroups
from worker.rank.channels.heartbeat import INTERVAL, Board, Heartbeat
from worker.rank.channels.heartbeat_link import serve_links
from worker.rank.executor import Executor
from worker.rank.job import Cancelled, Job
from worker.rank.job_groups import JobGroups
from worker.rank.state import RankState
from worker.wire.operations import TRIM
from worker.wire.private_folder import FOLDER, TOKEN

GB = 1 << 30
CARD = torch.device("cuda", 0)
HOLD_SECONDS = 1.0
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
PATIENCE = 60.0
THREADS = ("heartbeat", "handshake-client")
TOKEN_OF_TEST = "a" * 64
STORE = "torch._C._distributed_c10d."


class Allocator:
    """A card's, as CUDA's is: who asks it for figures while another thread allocates waits, and holds the GIL.

    asked: the threads that did so."""

    def __init__(self) -> None:
        self.held, self.is_allocating = 2 * GB, False
        self.asked: list[str] = []

    def figure(self, *_: Any) -> int:
        if self.is_allocating:
            self.asked.append(threading.current_thread().name)
            ctypes.PyDLL(None).usleep(int(HOLD_SECONDS * 1e6))  # PyDLL keeps the GIL
        return self.held


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    allocator, properties = Allocator(), SimpleNamespace(name="card", total_memory=8 * GB)
    for name in ("memory_allocated", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, allocator.figure)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: properties.name)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (8 * GB - allocator.figure(), 8 * GB))
    return allocator


class Rank:
    """This process as the only rank of a group, with its two threads, and a model of which half is read."""

    def __init__(self, folder: Path) -> None:
        board, timeline = Board(1), Timeline(torch.device("cpu"))
        self.state = RankState(CARD)
        parking, decoder = SimpleNamespace(is_parked=False), SimpleNamespace(sampling="")
        mesh = SimpleNamespace(plan=None)
        model: Any = SimpleNamespace(
            weight_bytes=4 * GB, resident_bytes=GB, parking=parking, decoder=decoder, patched="",
            bringing=4 * GB, mesh=mesh,
        )  # fmt: skip
        self.state.model = model
        self.heartbeat = Heartbeat(0, board, board.hear, self.state.memory, lambda: timeline.moves, lambda _job: None)
        group, groups = dist.group.WORLD, JobGroups(torch.device("cpu"), timeline)
        assert group
        self.executor = Executor(self.state, AgreementGroups(group), groups, self.heartbeat, None)
        self.executor.handlers[TRIM.name] = lambda _job, _tensors: None  # a request that asks the card for nothing
        (self.server,) = serve_links(lambda question: self.executor.answer(question), Future(), dist.HashStore())
        self.folder = folder

    def start(self) -> None:
        self.heartbeat.start()
        self.control = ControlClient(self.folder, TOKEN_OF_TEST)

    def status(self) -> dict[str, Any]:
        return self.control.ask({"op": "status"}, PATIENCE)

    def await_beats(self) -> bool:
        ((before, _),) = self.heartbeat.board.heard
        return wait_until(lambda: self.heartbeat.board.heard[0][0] > before + INTERVAL, PATIENCE)


@pytest.fixture
def rank(allocator: Allocator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rank]:
    told = {FOLDER: str(tmp_path), TOKEN: TOKEN_OF_TEST, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in {**told, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("worker.rank.executor.use_threads", lambda *_: None)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank = Rank(tmp_path)
    yield rank
    rank.heartbeat.on_beat = Mock(side_effect=SystemExit)  # which ends a thread without a word
    rank.control.close()
    close_server(rank.server)
    for thread in (rank.heartbeat, rank.server):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    dist.destroy_process_group()


def test_a_rank_that_waits_in_an_allocation_beats_and_answers(rank: Rank, allocator: Allocator) -> None:
    rank.start()
    assert rank.await_beats()
    allocator.is_allocating = True  # as seen by the other threads; this one waits without the GIL, as in cudaMalloc
    assert rank.await_beats()
    told = rank.status()
    allocator.is_allocating = False
    assert not allocator.asked, "they waited for the allocator, and so did all of Python"
    assert told["memory"][0]["accelerator"] == 2 * GB


def test_half_an_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "PART_SECONDS", 1)
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(control_client, "connect_to", lambda *_: Connection(ours.detach()))
    client = ControlClient(tmp_path, TOKEN_OF_TEST)
    theirs.sendall(struct.pack("!i", 20_000) + b"{")
    with pytest.raises(ConnectionError, match="broken"):
        client.ask({"op": "status"}, PATIENCE)


def test_questions_that_nobody_reads_are_no_wait_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket takes only so many. Who watches the ranks asks on, and judges them by their silence."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(control_client, "connect_to", lambda *_: Connection(ours.detach()))
    client = ControlClient(tmp_path, TOKEN_OF_TEST)

    def ask_often() -> None:
        for _ in range(1000):
            with contextlib.suppress(TimeoutError):
                client.ask({"op": "status"}, 0.0)

    asker = threading.Thread(target=ask_often, daemon=True)
    asker.start()
    asker.join(PATIENCE / 2)
    assert not asker.is_alive()
    for _ in range(len(client.unanswered)):
        Connection(os.dup(theirs.fileno())).send_bytes(b"{}")
    with pytest.raises(TimeoutError):
        client.ask({"op": "status"}, 0.1)  # which takes the old answers
    Connection(os.dup(theirs.fileno())).send_bytes(b'{"state": "ready"}')
    assert client.ask({"op": "status"}, PATIENCE) == {"state": "ready"}


def test_a_lack_of_memory_for_one_answer_leaves_the_next_one_its_answer(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = Mock(side_effect=[MemoryError, {"state": "ready"}])
    monkeypatch.setattr(rank.executor, "status", status)
    rank.start()
    with pytest.raises(TimeoutError, match="no memory"):
        rank.status()
    assert rank.status() == {"state": "ready"}


def test_the_status_after_a_request_tells_what_it_has_left_on_the_card(rank: Rank, allocator: Allocator) -> None:
    rank.start()
    allocator.held = GB  # by the request
    rank.executor.execute({"id": 1, **TRIM.header()}, {})
    told = rank.status()["memory"][0]
    assert (told["accelerator"], told["total"], told["weights"], told["resident_weights"]) == (GB, 8 * GB, 4 * GB, GB)


def test_the_answer_to_a_request_that_ended_early_says_whether_the_rank_still_has_its_model(rank: Rank) -> None:
    rank.start()

    def give_up(_job: Job, _tensors: Any) -> None:
        raise Cancelled

    def give_up_a_move(job: Job, tensors: Any) -> None:
        rank.state.forget_model()
        give_up(job, tensors)

    for handler, has_model in ((give_up, True), (give_up_a_move, False)):
        rank.executor.handlers[TRIM.name] = handler
        assert rank.executor.execute({"id": 1, **TRIM.header()}, {})[0] == {
            "cancelled": True, "has_model": has_model, "patched": "", "sampling": "",
        }  # fmt: skip


def test_how_much_of_the_weights_has_been_read_is_told_while_they_are_read(rank: Rank, allocator: Allocator) -> None:
    """A load checks between two blocks whether it is given up."""
    job = Job({"id": 1, "op": "load"}, {}, rank.state, rank.executor.control, rank.executor.groups, rank.heartbeat)
    rank.start()
    rank.state.before, allocator.held = GB, 2 * GB
    rank.state.published = 0.0  # long ago
    job.check()
    assert rank.status()["memory"][0]["read"] == 25
    allocator.held, rank.state.published = 3 * GB, time.monotonic() + PATIENCE
    job.check()
    assert rank.status()["memory"][0]["read"] == 25, "asked for each block, the allocator would slow the load"
    rank.state.published = 0.0
    job.check()
    assert rank.status()["memory"][0]["read"] == 50


def test_neither_thread_calls_torch_but_for_its_store(rank: Rank) -> None:
    """Whatever they call is looked at, in Python and in C."""
    called: dict[str, set[str]] = {name: set() for name in THREADS}

    def note(frame: FrameType, event: str, called_object: Any) -> None:
        thread = threading.current_thread().name
        if thread not in called:
            return
        if event == "call":
            called[thread].add(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")
        elif event == "c_call":
            called[thread].add(f"{called_object.__module__}.{called_object.__qualname__}")

    threading.setprofile(note)
    try:
        rank.start()
        assert rank.await_beats()
        rank.status()
    finally:
        threading.setprofile(None)
    assert all("worker.rank.state.memory" in called[thread] for thread in THREADS), "nothing was noted"
    of_torch = {name for names in called.values() for name in names if name.startswith("torch")}
    assert {name for name in of_torch if not name.startswith(STORE)} == set()
