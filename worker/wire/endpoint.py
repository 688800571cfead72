"""The socket in the group's folder at which ComfyUI waits for rank 0.

A channel begins with a handshake: rank 0 sends a hello, {"channel", "token"}, and ComfyUI a welcome. The job channel's
hello also says where rank 0's memory is, and its welcome, {"memory"}, whether ComfyUI maps it. The prefix of each has
the sender's version, so that both sides can report different versions.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import time
from pathlib import Path
from typing import Any

from .job_channel import FrameMemory, RankChannel
from .json_object import parse_object
from .private_folder import FOLDER, TOKEN, short_path
from .protocol import PREFIX, Header, ProtocolError, check_version, decode, read_any_prefix, receive_frame, send_frame

SOCKET = "socket"
CHANNELS = ("job", "control")
HELLO_SECONDS = 10
HELLO_BYTES = 4096
MAX_HELLOS = 64  # at the same time; a rank sends its hello in one piece, right after it has connected
BUFFER_BYTES = 4 << 20  # holds a whole latent, where the kernel allows it


class Endpoint:
    """Listens until both channels of one worker group have connected. After that nobody can connect.

    The socket is 0600 in a 0700 folder. Besides, a rank has to know the session's random token.
    """

    def __init__(self, folder: Path) -> None:
        """folder: of the group. Raises OSError."""
        self.token = secrets.token_hex(32)
        self.path = folder / SOCKET
        self.path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        os.fchmod(self.listener.fileno(), 0o600)  # the file gets this mode
        with short_path(self.path) as address:
            self.listener.bind(address)
        self.listener.listen(MAX_HELLOS)
        self.listener.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.hellos: dict[socket.socket, Hello] = {}  # the oldest first
        self.channels: dict[str, socket.socket] = {}
        self.memory: FrameMemory | None = None

    def accept(self, seconds: float) -> bool:
        """Waits up to `seconds` for connections. Returns whether every channel has connected.

        A stranger that connects and sends nothing, or nonsense, delays nobody. Raises ProtocolError for ranks of
        another version.
        """
        until = time.monotonic() + seconds
        while len(self.channels) < len(CHANNELS) and (left := until - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                if key.fileobj is self.listener:
                    self._take_connection()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self.hellos:
                    self._hear(key.fileobj)
            for connection in [each for each, hello in self.hellos.items() if hello.until < time.monotonic()]:
                self._drop(connection)
        return len(self.channels) == len(CHANNELS)

    def close(self) -> None:
        """Stops listening and removes the socket. Accepted channels stay open."""
        for connection in list(self.hellos):
            self._drop(connection)
        self.selector.close()
        self.listener.close()
        self.path.unlink(missing_ok=True)

    def _take_connection(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:  # it has gone already
            return
        if len(self.hellos) == MAX_HELLOS:
            self._drop(next(iter(self.hellos)))
        connection.setblocking(False)
        self.hellos[connection] = Hello()
        self.selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        hello = self.hellos[connection]
        try:
            if not hello.read(connection):
                return
        except (ProtocolError, OSError):
            self._drop(connection)
            return
        known = hmac.compare_digest(hello.token.encode(errors="replace"), self.token.encode())
        if not known or hello.channel not in CHANNELS or hello.channel in self.channels:
            self._drop(connection)
            return
        self.selector.unregister(connection)
        del self.hellos[connection]
        prepare(connection)
        welcome = {}
        if hello.memory:
            with contextlib.suppress(OSError, TypeError, ValueError):  # it goes without, through the socket
                self.memory = FrameMemory.open(hello.memory, self.token, writes=True)
            welcome = {"memory": self.memory is not None}
        with contextlib.suppress(ConnectionError):  # the first use of the channel will report it
            send_frame(connection, welcome)
        self.channels[hello.channel] = connection
        check_version(hello.version)

    def _drop(self, connection: socket.socket) -> None:
        self.selector.unregister(connection)
        del self.hellos[connection]
        connection.close()


class Hello:
    """The first frame of a connection, as far as it has arrived. until: the deadline for all of it."""

    def __init__(self) -> None:
        self.until = time.monotonic() + HELLO_SECONDS
        self.received = bytearray()
        self.version = 0
        self.channel, self.token = "", ""
        self.memory: Any = None

    def read(self, connection: socket.socket) -> bool:
        """Reads the bytes that have arrived, up to the end of the hello. Returns whether the hello is complete.

        Raises ProtocolError and OSError.
        """
        wanted = PREFIX.size
        while True:
            if len(self.received) >= PREFIX.size:
                self.version, *lengths = read_any_prefix(self.received[: PREFIX.size])
                wanted = PREFIX.size + sum(lengths)
                if wanted > HELLO_BYTES:
                    raise ProtocolError(f"A hello of {wanted} bytes is over the cap of {HELLO_BYTES}.")
                if len(self.received) == wanted:
                    break
            try:
                piece = connection.recv(wanted - len(self.received))
            except BlockingIOError:
                return False
            if not piece:
                raise ProtocolError("The other side closed the connection in the middle of its hello.")
            self.received += piece
        try:
            said = parse_object(self.received[PREFIX.size :][: lengths[0]])
        except ValueError as error:
            raise ProtocolError(f"A malformed hello: {error}.") from error
        self.channel, self.token = str(said.get("channel")), str(said.get("token"))
        self.memory = said.get("memory")
        return True


def prepare(connection: socket.socket) -> None:
    """Makes a connection a channel: blocking, with a buffer for a latent."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)


def connect_job(memory: FrameMemory | None) -> RankChannel:
    """Connects the job channel. memory: for frames, if there is any. Raises what `greet` raises."""
    connection, welcome = greet({"channel": "job", **({"memory": memory.flow.address} if memory else {})})
    return RankChannel(connection, memory if welcome.get("memory") else None)


def connect(channel: str) -> socket.socket:
    """Connects rank 0's end of a channel without memory. Raises what `greet` raises."""
    return greet({"channel": channel})[0]


def greet(hello: Header) -> tuple[socket.socket, Header]:
    """Connects to the endpoint of the group's folder. Returns the connection and the endpoint's welcome.

    Raises ProtocolError for a ComfyUI of another version, and ConnectionError if it refuses this rank.
    """
    path = Path(os.environ[FOLDER]) / SOCKET
    connection = socket.socket(socket.AF_UNIX)
    try:
        with short_path(path) as address:
            connection.connect(address)
    except OSError as error:
        raise ConnectionError(f"ComfyUI cannot be reached at its socket {path}: {error.strerror}.") from error
    prepare(connection)
    send_frame(connection, {**hello, "token": os.environ[TOKEN]})
    welcome, _ = decode(receive_frame(connection, HELLO_BYTES))
    return connection, welcome
