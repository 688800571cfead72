"""Who is kept out of the sockets, and of what a file may name. Ruff's rules in pyproject.toml keep out of the code what
would run what is read."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.host import REPOSITORY
from parallel_backend.errors import ModelFileError
from parallel_backend.weights.folder import transformer_source
from tests.support.cases.families import FAMILIES
from tests.support.programs import run_apart
from worker.wire import handshake
from worker.wire.endpoint import HELLO_BYTES, Endpoint, connect
from worker.wire.handshake import MAX_STRANGERS, connect_to
from worker.wire.private_folder import FOLDER, TOKEN, short_path
from worker.wire.protocol import VERSION, decode, encode, receive_frame, send_pieces

SOON = 5.0  # seconds; for what takes milliseconds, on a machine that does other things too


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """One that listens, at a path that is too long for an address. Its environment is this process's."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    endpoint = Endpoint(folder)
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.setenv(TOKEN, endpoint.token)
    yield endpoint
    endpoint.close()
    if endpoint.channel:
        endpoint.channel.close()


def knock(endpoint: Endpoint) -> socket.socket:
    """A connection that has said nothing yet."""
    connection = socket.socket(socket.AF_UNIX)
    with short_path(endpoint.path) as address:
        connection.connect(address)
    return connection


def connect_rank(endpoint: Endpoint) -> float:
    """Connects the job channel from another thread, and returns how many seconds it took until it was there."""
    connected: list[socket.socket] = []
    rank = threading.Thread(target=lambda: connected.append(connect()))
    began = time.monotonic()
    rank.start()
    while not endpoint.accept(0.05):
        assert time.monotonic() - began < 30
    seconds = time.monotonic() - began
    rank.join()
    send_pieces(endpoint.channel, encode({"for": "job"}))
    assert decode(receive_frame(connected[0]))[0] == {"for": "job"}
    connected[0].close()
    return seconds


def test_the_socket_is_its_owners_alone_from_the_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    born: list[int] = []
    listen = socket.socket.listen
    look = lambda self, *given: (born.append(os.stat(tmp_path / "socket").st_mode), listen(self, *given))  # noqa: E731
    monkeypatch.setattr(socket.socket, "listen", look)
    before = os.umask(0)
    try:
        Endpoint(tmp_path).close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE(mode) for mode in born] == [0o600]


def test_nobody_connects_after_the_ranks(endpoint: Endpoint) -> None:
    late = knock(endpoint)
    connect_rank(endpoint)
    endpoint.close()
    with pytest.raises(OSError):
        knock(endpoint)
    assert not endpoint.path.exists()
    read_to_the_end(late)


def read_to_the_end(stranger: socket.socket) -> None:
    """Reads the challenge, and what else comes before the other side closes the connection."""
    stranger.settimeout(SOON)
    while stranger.recv(64):
        pass


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
def test_who_is_no_rank_holds_up_nobody(said: bytes, endpoint: Endpoint) -> None:
    strangers = [knock(endpoint) for _ in range(3)]
    for stranger in strangers:
        stranger.sendall(said)
    assert not endpoint.accept(0.05)
    assert connect_rank(endpoint) < SOON
    for stranger in strangers:
        stranger.close()


def test_who_resets_the_connection_holds_up_nobody(endpoint: Endpoint) -> None:
    for _ in range(3):
        stranger = knock(endpoint)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()
    assert connect_rank(endpoint) < SOON


def test_a_crowd_holds_up_nobody_and_is_not_kept(endpoint: Endpoint) -> None:
    strangers = []
    for _ in range(4):
        strangers += [knock(endpoint) for _ in range(MAX_STRANGERS // 2)]
        endpoint.accept(0.1)
        assert len(endpoint.server.strangers) <= MAX_STRANGERS
    assert connect_rank(endpoint) < SOON
    for stranger in strangers:
        stranger.close()


def test_silence_is_not_waited_for(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PATIENCE_SECONDS", 1)
    with knock(endpoint) as stranger:
        read_to_the_end(stranger)
    assert not endpoint.server.strangers


def test_a_handshake_that_comes_byte_by_byte_is_not_waited_for(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "PATIENCE_SECONDS", 1)
    with knock(endpoint) as stranger:
        stranger.sendall(SIZE.pack(200))
        for _ in range(int(SOON / 0.1)):
            time.sleep(0.1)
            try:
                stranger.sendall(b"#")
            except BrokenPipeError:
                break
        else:
            pytest.fail("the server still reads")
    assert not endpoint.server.strangers


@pytest.mark.parametrize("hello", [b"[" * HELLO_BYTES, b" " * 2 * HELLO_BYTES, b"{}", b'{"channel": "other"}'])
def test_nonsense_behind_the_handshake_takes_no_channel(hello: bytes, endpoint: Endpoint) -> None:
    with connect_to(endpoint.path) as link:
        link.send_bytes(hello)
        with pytest.raises((EOFError, ConnectionError)):
            link.recv_bytes()
    assert connect_rank(endpoint) < SOON


def test_a_wrong_token_is_refused(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "0" * 64)
    with pytest.raises(ConnectionError, match="digest"):
        connect()
    assert not endpoint.channel


def test_the_channel_is_taken_once(endpoint: Endpoint) -> None:
    first = connect()
    with pytest.raises(ConnectionError, match="cannot be reached"):
        connect()
    send_pieces(endpoint.channel, encode({"hello": "first"}))
    assert decode(receive_frame(first))[0] == {"hello": "first"}
    first.close()


def test_other_versions_are_told_so_on_both_sides(endpoint: Endpoint) -> None:
    newer = (
        "import worker.wire.protocol as protocol; protocol.VERSION += 1\n"
        "from worker.wire.endpoint import connect; connect()"
    )
    rank = subprocess.Popen(
        [sys.executable, "-c", newer], cwd=REPOSITORY, env=os.environ, stderr=subprocess.PIPE, text=True
    )
    with pytest.raises(
        RuntimeError, match=rf"speaks version {VERSION + 1} .* and this one {VERSION}, .*\n\nRestart ComfyUI"
    ):
        while not endpoint.accept(0.1):
            assert rank.poll() is None, rank.stderr.read()
    _, said = rank.communicate(timeout=30)
    assert rank.returncode
    assert f"speaks version {VERSION} of ParallelDiT's protocol and this one {VERSION + 1}" in said


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
