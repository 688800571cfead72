"""Every rank gives signs of life whatever it does, and learns while it works that its request is given up."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from tests.support.group.direct_group import DIT, DirectGroup, direct_on, source_of, wait_until
from worker.host.client import WorkerGroup
from worker.rank.channels.heartbeat import INTERVAL, Board, Heartbeat
from worker.rank.channels.heartbeat_link import HeartbeatLink, serve_links
from worker.wire.handshake import MAX_STRANGERS
from worker.wire.private_folder import CONTROL, FOLDER, TOKEN, short_path

PATIENCE = 60.0
SECONDS_TO_STOP = 20.0
# A model of so many layers, which are small, takes a second to load.
MANY_LAYERS = {"num_layers": 600, "num_attention_heads": 2, "attention_head_dim": 8}


class GivenUp(Exception):
    """What a node's check raises once the prompt is interrupted."""


@pytest.fixture(scope="module")
def direct(group_of_two: WorkerGroup, tmp_path_factory: pytest.TempPathFactory) -> DirectGroup:
    return direct_on(group_of_two, tmp_path_factory.mktemp("heartbeat"), DIT, ulysses=2)


def test_a_load_that_is_given_up_ends_on_all_ranks_and_the_next_one_works(direct: DirectGroup, tmp_path: Path) -> None:
    before, pids = direct.forward(16, 16), direct.pids()
    deep = DIT.of_config(**MANY_LAYERS)
    long = replace(direct, source=source_of(deep, tmp_path / "deep"), plan=replace(direct.plan, weights="shared"))

    def give_up_while_it_loads() -> None:
        if direct.group.status()["operation"] == "load":
            raise GivenUp

    with pytest.raises(GivenUp):
        long.load(give_up_while_it_loads)
    told = direct.group.status()
    assert told["operation"] == "load" and told["given_up"]
    assert wait_until(lambda: direct.group.status()["state"] == "ready", SECONDS_TO_STOP)
    assert "model" not in direct.group.status(), "nothing of it is loaded"
    direct.load()
    assert torch.equal(direct.forward(16, 16), before)
    assert direct.pids() == pids


def test_a_request_that_could_not_be_written_leaves_none_to_wait_for(direct: DirectGroup) -> None:
    """The next would wait for its reply, without end."""
    before, pids = direct.forward(16, 16), direct.pids()
    latents, timestep, conditions = direct.family.inputs(2, 16, 16)
    with pytest.raises(NotImplementedError, match="meta"):
        direct.call(latents.to("meta"), timestep, conditions)
    assert direct.group.status()["state"] == "ready"
    assert torch.equal(direct.forward(16, 16), before)
    assert direct.pids() == pids


class Ranks:
    """Rank 0's side of the heartbeat in this process, and the connection of rank 1."""

    def __init__(self) -> None:
        self.board, self.store = Board(2), dist.HashStore()
        self.server = serve_links(self.board.hear, Future(), self.store)[-1]
        self.link = HeartbeatLink(self.store)


@pytest.fixture(params=[2, 1], ids=["one machine", "two machines"])
def ranks(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    told = {FOLDER: str(folder), TOKEN: "a" * 64, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": str(request.param)}
    for name, value in {**told, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    return Ranks()


def heartbeat_of(ranks: Ranks, rank: int, broken: list[int]) -> Heartbeat:
    ask = ranks.link.ask if rank else ranks.board.hear
    return Heartbeat(rank, ranks.board, ask, lambda: {"resident": 1 + rank}, int, broken.append)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_heartbeat_outlives_a_broken_connection(ranks: Ranks) -> None:
    broken: list[int] = []
    first, second = heartbeat_of(ranks, 0, []), heartbeat_of(ranks, 1, broken)
    second.start()
    cut(ranks.link)
    (before, _) = ranks.board.heard[1]
    assert wait_until(lambda: ranks.board.heard[1][0] > before + 2 * INTERVAL, PATIENCE)
    assert first.status()["memory"] == [{"resident": 1}, {"resident": 2}]
    cut(ranks.link)
    second.beat(broken=7)
    assert first.is_broken(7) and second.is_broken(7)
    assert not second.is_broken(8)
    assert wait_until(lambda: broken == [7], PATIENCE)
    first.cancel(9)
    assert wait_until(lambda: second.cancelled == 9, PATIENCE)
    second.on_beat = Mock(side_effect=SystemExit)  # which ends it without a word
    second.join(PATIENCE)
    assert not second.is_alive()


def cut(link: HeartbeatLink) -> None:
    """Breaks a connection, as a network does."""
    with socket.socket(fileno=os.dup(link.link.fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def test_who_does_not_know_the_token_is_not_heard(ranks: Ranks) -> None:
    """A process that has only the address. Neither end hears the other."""
    with address_of(ranks) as address, pytest.raises(AuthenticationError):
        Client(address, authkey=b"b" * 64)
    assert ranks.board.heard[1][1] == {"moves": 0, "memory": {}}


@contextlib.contextmanager
def address_of(ranks: Ranks) -> Iterator[Any]:
    address = ranks.server.listener.getsockname()
    if isinstance(address, tuple):
        yield address
        return
    with short_path(Path(os.environ[FOLDER]) / CONTROL) as path:
        yield path


@pytest.mark.parametrize("said", [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\x7f\xff\xff\xff", b"\0\0\0\x02[["])
def test_who_is_no_rank_holds_up_no_heartbeat(said: bytes, ranks: Ranks) -> None:
    strangers = []
    for _ in range(2 * MAX_STRANGERS):
        with address_of(ranks) as address:
            stranger = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)
            stranger.connect(address)
        with contextlib.suppress(OSError):  # it was dropped
            stranger.sendall(said)
        strangers.append(stranger)
    beat = {"rank": 1, "moves": 3, "memory": {}, "broken": 0}
    assert ranks.link.ask(beat) == {"cancelled": 0, "broken": 0}
    assert ranks.board.heard[1][1] == beat
    for stranger in strangers:
        stranger.close()
