"""The control channel at rank 0: answers while a job runs, and ends the rank when ComfyUI has gone."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from .protocol import ConnectionClosed, decode, receive_frame, send_frame

LINGER_SECONDS = 5


class ControlServer(threading.Thread):
    """Answers `status` requests from a thread of its own."""

    def __init__(self, connection: socket.socket, status: Callable[[], dict[str, Any]]) -> None:
        super().__init__(name="control", daemon=True)
        self.connection = connection
        self.status = status

    def run(self) -> None:
        try:
            while True:
                decode(receive_frame(self.connection))
                send_frame(self.connection, self.status())
        except (ConnectionClosed, ConnectionError):
            # An idle group stops by itself, having seen the job channel close; one in mid-collective has to be ended.
            threading.Timer(LINGER_SECONDS, os._exit, [1]).start()
