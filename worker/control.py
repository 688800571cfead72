"""The control channel at rank 0: answers while a job runs, and ends the rank when ComfyUI has gone."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from .protocol import ConnectionClosed, decode, receive_frame, send_frame

LINGER_SECONDS = 5


class ControlServer(threading.Thread):
    """Answers requests from a thread of its own: by operation, what is called with the rest of the header."""

    def __init__(
        self, connection: socket.socket, operations: Mapping[str, Callable[..., dict[str, Any] | None]]
    ) -> None:
        super().__init__(name="control", daemon=True)
        self.connection = connection
        self.operations = operations

    def run(self) -> None:
        try:
            while True:
                header, _ = decode(receive_frame(self.connection))
                send_frame(self.connection, self.operations[header.pop("op")](**header) or {})
        except (ConnectionClosed, ConnectionError):
            # An idle group stops by itself, having seen the job channel close; one in mid-collective has to be ended.
            threading.Timer(LINGER_SECONDS, os._exit, [1]).start()
