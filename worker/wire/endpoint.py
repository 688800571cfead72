"""The socket in the group's folder at which ComfyUI waits for rank 0.

Behind the handshake (`handshake.py`), the job channel begins with a hello of rank 0, {"version", "has_memory"}, and a
welcome of ComfyUI, {"version"}. has_memory: whether rank 0 maps the memory for frames. Both sides report different
versions.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from .handshake import BROKEN_LINK, HandshakeServer, connect_to, listen_at
from .json_object import parse_object, to_bytes
from .private_folder import FOLDER
from .protocol import VERSION, Header, check_version

SOCKET = "socket"
HELLO_BYTES = 4096
BUFFER = socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20  # holds a whole latent, where the kernel allows it


class Endpoint:
    """Listens until the job channel of one worker group has connected. After that nobody can connect.

    The socket is 0600 in a 0700 folder. Besides, a rank has to know the session's random token.
    """

    def __init__(self, folder: Path) -> None:
        """folder: of the group. Raises OSError."""
        self.token = secrets.token_hex(32)
        self.path = folder / SOCKET
        self.channel: socket.socket | None = None
        self.hello: Header = {}  # of the channel
        self.lock, self.is_over = threading.Lock(), threading.Event()
        self.server = HandshakeServer(listen_at(self.path), self.token, self._hear)

    def accept(self, seconds: float) -> bool:
        """Waits up to `seconds` for the channel. Returns whether it has connected. Raises ProtocolError for ranks of
        another version."""
        if not self.is_over.wait(seconds):
            return False
        check_version(self.hello["version"])
        return True

    def close(self) -> None:
        """Stops listening and removes the socket. An accepted channel stays open."""
        self.server.close()
        self.path.unlink(missing_ok=True)

    def _hear(self, connection: socket.socket, link: Connection) -> None:
        hello = parse_object(link.recv_bytes(HELLO_BYTES))
        with self.lock:
            if self.channel or "version" not in hello:
                raise ValueError("this is no hello, or the channel was taken before")
            self.channel, self.hello = connection, hello
        with contextlib.suppress(OSError):  # the first use of the channel will report it
            link.send_bytes(to_bytes({"version": VERSION}))
        connection.setsockopt(*BUFFER)
        self.is_over.set()


def connect(has_memory: bool = False) -> socket.socket:
    """Connects rank 0's end of the job channel. has_memory: whether this rank maps the memory for frames.

    Raises ProtocolError for a ComfyUI of another version, and ConnectionError if it refuses this rank.
    """
    path = Path(os.environ[FOLDER]) / SOCKET
    try:
        with connect_to(path) as link:
            # Version 26 reads "channel", too, before it says that it is another version.
            link.send_bytes(to_bytes({"version": VERSION, "has_memory": has_memory, "channel": "job"}))
            check_version(parse_object(link.recv_bytes(HELLO_BYTES))["version"])
            connection = socket.socket(fileno=os.dup(link.fileno()))
            connection.setsockopt(*BUFFER)
            return connection
    except BROKEN_LINK as error:
        raise ConnectionError(f"ComfyUI cannot be reached at its socket {path}: {error}.") from error
