"""The address at which ComfyUI waits for rank 0: AF_UNIX where there is one, else loopback TCP with a token."""

from __future__ import annotations

import hmac
import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path

from .protocol import ProtocolError, decode, receive_frame, send_frame

ADDRESS = "PARALLELDIT_ADDRESS"
TOKEN = "PARALLELDIT_TOKEN"
CHANNELS = ("job", "control")
MAX_UNIX_PATH = 100
HELLO_SECONDS = 10
HELLO_BYTES = 4096
BUFFER_BYTES = 4 << 20  # a latent in one go, where the kernel allows it


class Endpoint:
    """Listens until both channels of one worker group have connected, then is gone: nobody else can connect.

    The socket is 0600 in a private 0700 folder; a random token guards the TCP fallback and costs nothing elsewhere.
    """

    def __init__(self) -> None:
        self.token = secrets.token_hex(32)
        self.folder = Path(tempfile.mkdtemp(prefix="paralleldit-"))
        path = str(self.folder / "socket")
        if hasattr(socket, "AF_UNIX") and len(os.fsencode(path)) <= MAX_UNIX_PATH:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(path)
            os.chmod(path, 0o600)
            self.address = f"unix:{path}"
        else:
            self.listener = socket.socket()
            self.listener.bind(("127.0.0.1", 0))
            self.address = f"tcp:{self.listener.getsockname()[1]}"
        self.listener.listen(len(CHANNELS))
        self.channels: dict[str, socket.socket] = {}

    def environment(self) -> dict[str, str]:
        """What a rank needs to connect."""
        return {ADDRESS: self.address, TOKEN: self.token}

    def accept(self, seconds: float) -> bool:
        """Waits up to `seconds` for a connection; true once every channel is there."""
        self.listener.settimeout(seconds)
        try:
            connection, _ = self.listener.accept()
        except TimeoutError:
            return False
        connection.settimeout(HELLO_SECONDS)
        try:
            hello, _ = decode(receive_frame(connection, HELLO_BYTES))
        except (ProtocolError, OSError):
            connection.close()
            return False
        channel = hello.get("channel")
        if not hmac.compare_digest(str(hello.get("token")), self.token) or channel not in CHANNELS:
            connection.close()
            return False
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self.channels[channel] = connection
        return len(self.channels) == len(CHANNELS)

    def close(self) -> None:
        """Stops listening and removes the socket; accepted channels stay open."""
        self.listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def connect(channel: str) -> socket.socket:
    """Connects rank 0's end of a channel to the endpoint that the environment names."""
    kind, _, where = os.environ[ADDRESS].partition(":")
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(where)
    else:
        connection = socket.create_connection(("127.0.0.1", int(where)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    send_frame(connection, {"channel": channel, "token": os.environ[TOKEN]})
    return connection
