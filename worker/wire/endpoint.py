"""The socket in the group's folder at which ComfyUI waits for rank 0.

Behind the handshake (`handshake.py`), a channel begins with a hello of rank 0, {"version", "channel", "has_memory"},
and a welcome of ComfyUI, {"version"}. The job channel's hello says whether rank 0 maps the memory for frames. Both
sides report different versions.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from .handshake import BROKEN_LINK, HandshakeServer, connect_to, listen_at, patience
from .json_object import parse_object, to_bytes
from .private_folder import FOLDER
from .protocol import VERSION, ProtocolError, check_version

SOCKET = "socket"
CHANNELS = ("job", "control")
HELLO_BYTES = 4096
BUFFER_BYTES = 4 << 20  # holds a whole latent, where the kernel allows it


class Endpoint:
    """Listens until both channels of one worker group have connected. After that nobody can connect.

    The socket is 0600 in a 0700 folder. Besides, a rank has to know the session's random token.
    """

    def __init__(self, folder: Path) -> None:
        """folder: of the group. Raises OSError."""
        self.token = secrets.token_hex(32)
        self.path = folder / SOCKET
        self.channels: dict[str, socket.socket] = {}
        self.has_memory = False  # whether rank 0 maps the memory for frames
        self.other_version: ProtocolError | None = None
        self.is_over = threading.Event()
        self.server = HandshakeServer(listen_at(self.path), self.token, self._hear)

    def accept(self, seconds: float) -> bool:
        """Waits up to `seconds` for connections. Returns whether every channel has connected. Raises ProtocolError for
        ranks of another version."""
        self.is_over.wait(seconds)
        if self.other_version:
            raise self.other_version
        return self.is_over.is_set()

    def close(self) -> None:
        """Stops listening and removes the socket. Accepted channels stay open."""
        self.server.close()
        self.path.unlink(missing_ok=True)

    def _hear(self, connection: socket.socket, link: Connection) -> None:
        hello = parse_object(link.recv_bytes(HELLO_BYTES))
        channel = hello["channel"]
        if channel not in CHANNELS or self.channels.setdefault(channel, connection) is not connection:
            raise ValueError(f"the channel {channel!r:.40} is unknown, or was taken before")
        self.has_memory = self.has_memory or hello["has_memory"]
        with contextlib.suppress(OSError):  # the first use of the channel will report it
            link.send_bytes(to_bytes({"version": VERSION}))
        prepare(connection)
        try:
            check_version(hello["version"])
        except ProtocolError as error:
            self.other_version = error
        if self.other_version or len(self.channels) == len(CHANNELS):
            self.is_over.set()


def prepare(connection: socket.socket) -> socket.socket:
    """Makes a connection a channel: blocking, with a buffer for a latent."""
    connection.setsockopt(*patience(0))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return connection


def connect(channel: str, has_memory: bool = False) -> socket.socket:
    """Connects rank 0's end of a channel. has_memory: whether this rank maps the memory for frames.

    Raises ProtocolError for a ComfyUI of another version, and ConnectionError if it refuses this rank.
    """
    path = Path(os.environ[FOLDER]) / SOCKET
    try:
        with connect_to(path) as link:
            link.send_bytes(to_bytes({"version": VERSION, "channel": channel, "has_memory": has_memory}))
            check_version(parse_object(link.recv_bytes(HELLO_BYTES))["version"])
            return prepare(socket.socket(fileno=os.dup(link.fileno())))
    except BROKEN_LINK as error:
        raise ConnectionError(f"ComfyUI cannot be reached at its socket {path}: {error}.") from error
