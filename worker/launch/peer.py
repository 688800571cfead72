"""A connection between two machines: one JSON object a line, and a heartbeat each second."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from ..errors import ConnectionClosed
from ..wire.json_object import parse_object, to_bytes

BEAT_SECONDS = 1.0
MAX_LINE = 64 << 10
HELLO_SECONDS = 5.0

Message = dict[str, Any]


class PeerConnection:
    """One end of the connection. From `keep` on it sends a heartbeat each second, and expects them from the peer."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(HELLO_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.silence = HELLO_SECONDS
        self.reader = connection.makefile("rb")
        self.closed = threading.Event()
        self.sending = threading.Lock()

    def keep(self, silence: float) -> None:
        """Starts the heartbeat. silence: after so many seconds without one, the other side counts as lost."""
        self.silence = silence
        self.connection.settimeout(silence)
        threading.Thread(target=self._beat, name="peer-heartbeat", daemon=True).start()

    def send(self, message: Message) -> None:
        """Raises ConnectionClosed."""
        try:
            with self.sending:
                self.connection.sendall(to_bytes(message) + b"\n")
        except OSError as error:
            raise ConnectionClosed(f"has closed the connection ({error})") from error

    def receive(self) -> Message:
        """Returns the next message that is not a heartbeat. Raises ConnectionClosed."""
        while True:
            try:
                text = self.reader.readline(MAX_LINE)
                message = parse_object(text if text.endswith(b"\n") else b"") if text else {}  # b"": it was cut off
            except TimeoutError as error:
                raise ConnectionClosed(f"has given no sign of life for {self.silence:g} s") from error
            except OSError as error:
                raise ConnectionClosed(f"has closed the connection ({error})") from error
            except ValueError as error:
                raise ConnectionClosed("sent something that is not a message of this pack") from error
            if not text:
                raise ConnectionClosed("has closed the connection")
            if message:
                return message

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
        self.closed.set()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _beat(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while not self.closed.wait(BEAT_SECONDS):
                self.send({})
