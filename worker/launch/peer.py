"""A connection between two machines: one JSON object a line. The kernel notices if the other machine is gone."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from typing import Any

from ..errors import ConnectionClosed
from ..wire.json_object import parse_object, to_bytes

MAX_LINE = 64 << 10
HELLO_SECONDS = 5.0
PROBES, DAY = 100, 86_400  # the most probes, and the longest silence in seconds, that the kernel is told

Message = dict[str, Any]


class PeerConnection:
    """One end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(HELLO_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.silence = HELLO_SECONDS
        self.reader = connection.makefile("rb")

    def keep(self, silence: float) -> None:
        """Makes the kernel probe the other machine. silence: after so many seconds without an answer, it is lost."""
        self.silence = silence
        self.connection.settimeout(None)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        seconds = max(1, min(DAY, math.ceil(silence)))
        pause = math.ceil(seconds / PROBES)
        options = {"KEEPIDLE": pause, "KEEPINTVL": pause, "KEEPCNT": seconds // pause, "USER_TIMEOUT": 1000 * seconds}
        for name, value in options.items():
            self.connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)

    def send(self, message: Message) -> None:
        """Raises ConnectionClosed."""
        try:
            self.connection.sendall(to_bytes(message) + b"\n")
        except OSError as error:
            raise ConnectionClosed(f"has closed the connection ({error})") from error

    def receive(self) -> Message:
        """Returns the next message. Raises ConnectionClosed."""
        try:
            if text := self.reader.readline(MAX_LINE):
                return parse_object(text if text.endswith(b"\n") else b"")  # b"": it was cut off
        except TimeoutError as error:
            raise ConnectionClosed(f"has given no sign of life for {self.silence:g} s") from error
        except OSError as error:
            raise ConnectionClosed(f"has closed the connection ({error})") from error
        except ValueError as error:
            raise ConnectionClosed("sent something that is not a message of this pack") from error
        raise ConnectionClosed("has closed the connection")

    def receive_hello(self) -> Message:
        """Returns the first message, all of which must come within HELLO_SECONDS. Raises ConnectionClosed."""
        timer = threading.Timer(HELLO_SECONDS, self.close)
        timer.start()
        try:
            return self.receive()
        finally:
            timer.cancel()

    def close(self) -> None:
        """Closes the connection. This also ends a `receive` in another thread."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
