"""Who is kept out of the sockets, and of what a file may name. Ruff's rules in pyproject.toml keep out of the code what
would run what is read."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from demo.host import REPOSITORY
from parallel_backend.errors import ModelFileError
from parallel_backend.weights.folder import transformer_source
from tests.support.cases.families import FAMILIES
from tests.support.group.one_rank import OneRank, close_server
from tests.support.programs import run_apart
from worker.rank.channels.heartbeat_link import MAX_BYTES, serve_links
from worker.wire import handshake
from worker.wire.handshake import MAX_STRANGERS, connect_to
from worker.wire.job_channel import HostChannel, RankChannel, ask_for_channel
from worker.wire.private_folder import CONTROL, FOLDER, TOKEN, short_path
from worker.wire.protocol import MAGIC, PREFIX, VERSION

SOON = 5.0  # seconds; for what takes milliseconds, on a machine that does other things too


TOKEN_OF_TEST = "a" * 64


class Door:
    """Rank 0's socket in this process, at a path that is too long for an address. job: of ComfyUI's channel."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / CONTROL
        self.job: Future[socket.socket] = Future()
        (self.server,) = serve_links(lambda _question: {"error": "unknown"}, self.job, dist.HashStore())


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes this process rank 0 of this folder's group."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    for name, value in {FOLDER: str(folder), TOKEN: TOKEN_OF_TEST, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def door(environment: Path) -> Iterator[Door]:
    door = Door(environment)
    yield door
    close_server(door.server)
    if door.job.done():
        door.job.result().close()


def knock(door: Door) -> socket.socket:
    """A connection that has said nothing yet."""
    connection = socket.socket(socket.AF_UNIX)
    with short_path(door.path) as address:
        connection.connect(address)
    return connection


def connect_comfyui(door: Door) -> float:
    """Connects the job channel, and returns how many seconds it took until it was there."""
    began = time.monotonic()
    host = HostChannel(ask_for_channel(door.path, TOKEN_OF_TEST), None)
    rank = RankChannel(door.job.result(30), None)
    seconds = time.monotonic() - began
    rank.send({"for": "job"})
    assert host.receive() == ({"for": "job"}, {})
    host.close()
    return seconds


def test_the_socket_is_its_owners_alone_from_the_first_moment(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    born: list[int] = []

    def look(self: socket.socket, *given: Any) -> None:
        born.append(os.stat(environment / CONTROL).st_mode)
        listen(self, *given)

    listen = socket.socket.listen
    monkeypatch.setattr(socket.socket, "listen", look)
    before = os.umask(0)
    try:
        close_server(Door(environment).server)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(mode) for mode in born] == [0o600]


SIZE = struct.Struct("!i")  # before each message of `multiprocessing`
JUNK = {
    "silence": b"",
    "half a message": SIZE.pack(20) + b"#WELCOME#",
    "a browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a wrong digest": SIZE.pack(16) + bytes(16),
    "a huge message": SIZE.pack(1 << 30) + b" " * 8000,
    "an empty message": SIZE.pack(0),
    "a hello in place of the handshake": SIZE.pack(2) + b"{}",
}


@pytest.mark.parametrize("said", JUNK.values(), ids=JUNK)
def test_who_is_no_rank_holds_up_nobody(said: bytes, door: Door) -> None:
    strangers = [knock(door) for _ in range(3)]
    for stranger in strangers:
        stranger.sendall(said)
    time.sleep(0.05)
    assert not door.job.done()
    assert connect_comfyui(door) < SOON
    for stranger in strangers:
        stranger.close()


def test_who_resets_the_connection_holds_up_nobody(door: Door) -> None:
    for _ in range(3):
        stranger = knock(door)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()
    assert connect_comfyui(door) < SOON


def test_a_crowd_holds_up_nobody_and_is_not_kept(door: Door) -> None:
    strangers = []
    for _ in range(4):
        strangers += [knock(door) for _ in range(MAX_STRANGERS // 2)]
        time.sleep(0.1)
        assert len(door.server.strangers) <= MAX_STRANGERS
    assert connect_comfyui(door) < SOON
    for stranger in strangers:
        stranger.close()


def test_silence_is_not_waited_for(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PATIENCE_SECONDS", 1)
    with knock(door) as stranger:
        stranger.settimeout(SOON)
        while stranger.recv(64):  # the challenge, and what else comes before the other side closes the connection
            pass
    assert not door.server.strangers


def test_a_handshake_that_comes_byte_by_byte_is_not_waited_for(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PATIENCE_SECONDS", 1)
    with knock(door) as stranger:
        stranger.sendall(SIZE.pack(200))
        for _ in range(int(SOON / 0.1)):
            time.sleep(0.1)
            try:
                stranger.sendall(b"#")
            except BrokenPipeError:
                break
        else:
            pytest.fail("the server still reads")
    assert not door.server.strangers


@pytest.mark.parametrize("said", [b"[" * MAX_BYTES, b" " * 2 * MAX_BYTES, b"[]", b"{"], ids=lambda said: said[:2])
def test_nonsense_behind_the_handshake_takes_no_channel(said: bytes, door: Door) -> None:
    with connect_to(door.path) as link:
        with pytest.raises((EOFError, ConnectionError)):
            link.send_bytes(said)
            link.recv_bytes()
    assert connect_comfyui(door) < SOON


@pytest.mark.parametrize("said", [b"{}", b'{"op": "other"}', b'{"op": "job", "more": 1}'])
def test_another_question_takes_no_channel(said: bytes, door: Door) -> None:
    with connect_to(door.path) as link:
        link.send_bytes(said)
        assert json.loads(link.recv_bytes()) == {"error": "unknown"}
    assert not door.job.done()


def test_another_machine_takes_no_channel(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could know the token, which travels in clear text."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    between = serve_links(lambda _question: {"error": "unknown"}, door.job, dist.HashStore())[-1]
    with connect_to(between.listener.getsockname()) as link:
        link.send_bytes(b'{"op": "job"}')
        assert json.loads(link.recv_bytes()) == {"error": "unknown"}
    close_server(between)
    assert not door.job.done()


def test_a_wrong_token_is_refused(door: Door) -> None:
    with pytest.raises(AuthenticationError, match="digest"):
        ask_for_channel(door.path, "0" * 64)
    assert not door.job.done()


def test_the_channel_is_taken_once(door: Door) -> None:
    first = ask_for_channel(door.path, TOKEN_OF_TEST)
    taken = door.job.result(SOON)
    with pytest.raises(ConnectionError, match="closed"):
        HostChannel(ask_for_channel(door.path, TOKEN_OF_TEST), None).receive()
    RankChannel(taken, None).send({"hello": "first"})
    assert HostChannel(first, None).receive() == ({"hello": "first"}, {})


def test_a_rank_that_falls_silent_in_the_handshake_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who starts the ranks waits for it, and can be interrupted only in between."""
    monkeypatch.setattr(handshake, "PATIENCE_SECONDS", 1)
    with handshake.listen_at(tmp_path / CONTROL) as listener:

        def begin() -> None:
            with Connection(listener.accept()[0].detach()) as link, contextlib.suppress(OSError, EOFError):
                link.send_bytes(b"#CHALLENGE#" + bytes(20))
                while True:
                    link.recv_bytes()

        threading.Thread(target=begin, daemon=True).start()
        with pytest.raises(BlockingIOError):
            connect_to(tmp_path / CONTROL, TOKEN_OF_TEST)


def test_other_versions_are_told_so_on_both_sides(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=f"speaks version {VERSION + 1} of .* and this one {VERSION}"):
        OneRank(tmp_path, version=VERSION + 1)
    comfyui, rank = socket.socketpair()
    rank.sendall(PREFIX.pack(MAGIC, VERSION + 1, 2, 0) + b"{}")
    with pytest.raises(
        RuntimeError, match=rf"speaks version {VERSION + 1} .* and this one {VERSION}, .*\n\nRestart ComfyUI"
    ):
        HostChannel(comfyui, None).receive()


@pytest.mark.parametrize(
    "weight_map",
    [
        {"x": "../../secret.safetensors"}, {"x": "/etc/secret.safetensors"}, {"x": "..\\secret.safetensors"},
        {"x": ".."}, {"x": "sub/x.safetensors"}, {"x": "x\0.safetensors"}, {"x": "x.bin"}, {"x": ""}, {"x": 1},
        {"x": ["x"]}, [], None,
    ],
)  # fmt: skip
def test_an_index_leads_out_of_no_folder(weight_map: object, tmp_path: Path) -> None:
    transformer = tmp_path / "pipeline" / "transformer"
    FAMILIES["pixart-alpha"].save(transformer)
    (transformer / "diffusion_pytorch_model.safetensors").unlink()
    (tmp_path / "secret.safetensors").write_bytes(b"")
    (transformer / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelFileError, match="where a safetensors file of its own folder has to be"):
        transformer_source(transformer.parent)


def test_a_workflows_names_lead_out_of_no_folder(comfyui: Path, tmp_path: Path) -> None:
    """They are looked up in lists. A link that the operator has put there is followed, as all of ComfyUI does."""
    base, model = tmp_path / "base", REPOSITORY / "demo" / "shapes-dit"
    (base / "models" / "diffusers").mkdir(parents=True)
    (base / "models" / "diffusers" / "linked-folder").symlink_to(model)
    names = [
        "../../outside", "../../../outside", str(model), "~/x", "linked-folder/../linked-folder", "linked-folder\0",
        "\0", "", ".", "..", "/", "../diffusers/linked-folder", "linked-folder/transformer", "$HOME/x", "file:///x",
        "\ud800", "x; touch x",
    ]  # fmt: skip
    asked = json.dumps([*names, "linked-folder"])
    found = run_apart(comfyui, "tests.support.files.told:look_up_names", base, asked)
    for name in names:
        said = found[name]
        assert said["valid"] is not True and said["path"] == "", name
        assert said["load"].startswith("Refused: There is no class-conditional DiT"), name
    assert found["linked-folder"]["valid"] is True
    assert found["linked-folder"]["path"] == str(base / "models" / "diffusers" / "linked-folder")
