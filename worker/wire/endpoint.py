"""The socket at which ComfyUI waits for rank 0: AF_UNIX, in a folder that only its user can enter.

A channel begins with a handshake: rank 0 sends a hello, {"channel"}, and ComfyUI a welcome. The job channel's hello
also says where rank 0's memory is, and its welcome, {"memory"}, whether ComfyUI maps it. The prefix of each has the
sender's version, so that both sides can report different versions.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
from collections.abc import Sequence

from .job_channel import FrameMemory, RankChannel, SharedMemory
from .private_folder import private_folder
from .protocol import Header, ProtocolError, VersionError, decode, receive_frame, send_frame

ADDRESS = "PARALLELDIT_ADDRESS"
CHANNELS = ("job", "control")
HELLO_SECONDS = 5  # a rank sends its hello in one piece, right after it has connected
HELLO_BYTES = 4096
BUFFER_BYTES = 4 << 20  # holds a whole latent, where the kernel allows it


class Endpoint:
    """Listens until both channels of one worker group have connected. After that nobody can connect.

    The socket is 0600 in a private 0700 folder, so only processes of this user reach it.
    """

    def __init__(self) -> None:
        """Raises OSError if the path of the folder for temporary files is too long for a socket."""
        self.folder = private_folder("socket")
        self.address = str(self.folder / "socket")
        self.listener = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):  # on Linux the file gets this mode; elsewhere the folder guards it
            os.fchmod(self.listener.fileno(), 0o600)
        self.listener.bind(self.address)
        os.chmod(self.address, 0o600)
        self.listener.listen()
        self.channels: dict[str, socket.socket] = {}
        self.memory: FrameMemory | None = None

    def environment(self) -> dict[str, str]:
        """Returns the variables that a rank needs to connect."""
        return {ADDRESS: self.address}

    def accept(self, seconds: float) -> bool:
        """Waits up to `seconds` for a connection. Returns whether every channel has connected.

        Drops a connection that does not begin with a hello. Raises ProtocolError for ranks of another version.
        """
        self.listener.settimeout(seconds)
        with contextlib.suppress(OSError):  # none came, or it has gone already
            connection, _ = self.listener.accept()
            if not self._welcome(connection):
                connection.close()
        return len(self.channels) == len(CHANNELS)

    def close(self) -> None:
        """Stops listening and removes the socket. Accepted channels stay open."""
        self.listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _welcome(self, connection: socket.socket) -> bool:
        """Makes a connection one of the channels. Returns whether it could."""
        connection.settimeout(HELLO_SECONDS)
        try:
            hello, _ = decode(receive_frame(connection, HELLO_BYTES))
        except VersionError:
            send_frame(connection, {})  # tells this side's version
            raise
        except ProtocolError:
            return False
        channel = hello.get("channel")
        if channel not in CHANNELS or channel in self.channels:
            return False
        prepare(connection)
        welcome = {}
        if "memory" in hello:
            self.memory = FrameMemory.open(hello["memory"], str(hello.get("token")))
            welcome = {"memory": self.memory is not None}
        send_frame(connection, welcome)
        self.channels[channel] = connection
        return True


def prepare(connection: socket.socket) -> None:
    """Makes a connection a channel: blocking, with a buffer for a latent."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)


def connect_job(requests: Sequence[SharedMemory]) -> RankChannel:
    """Connects the job channel. requests: the memory that the ranks read requests from, if there is any. Raises what
    `connect` raises."""
    memory: FrameMemory | None = None
    hello: Header = {"channel": "job"}
    if requests:
        with contextlib.suppress(OSError):  # no descriptors are left
            token = secrets.token_hex()
            memory = FrameMemory.create(requests, token)
            hello |= {"memory": memory.addresses, "token": token}
    connection, welcome = greet(hello)
    return RankChannel(connection, memory if welcome.get("memory") else None)


def connect(channel: str) -> socket.socket:
    """Connects rank 0's end of a channel without memory. Raises what `greet` raises."""
    return greet({"channel": channel})[0]


def greet(hello: Header) -> tuple[socket.socket, Header]:
    """Connects to the endpoint that the environment names. Returns the connection and the endpoint's welcome.

    Raises ProtocolError for a ComfyUI of another version, and ConnectionError if it refuses this rank.
    """
    address = os.environ[ADDRESS]
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError as error:
        raise ConnectionError(f"ComfyUI cannot be reached at its socket {address}: {error.strerror}.") from error
    prepare(connection)
    send_frame(connection, hello)
    welcome, _ = decode(receive_frame(connection, HELLO_BYTES))
    return connection, welcome
