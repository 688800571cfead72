"""The control channel at rank 0. It answers while a job runs, and ends the rank when ComfyUI has ended."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ...wire.protocol import MAX_HEADER, ProtocolError, decode, receive_frame, send_frame

LINGER_SECONDS = 5


class ControlServer(threading.Thread):
    """Answers requests in its own thread. It maps each operation to a function that takes the rest of the header."""

    def __init__(
        self, connection: socket.socket, operations: Mapping[str, Callable[..., dict[str, Any] | None]]
    ) -> None:
        super().__init__(name="control", daemon=True)
        self.connection = connection
        self.operations = operations

    def run(self) -> None:
        try:
            while True:
                header, _ = decode(receive_frame(self.connection, MAX_HEADER))
                send_frame(self.connection, self.operations[header.pop("op")](**header) or {})
        except ProtocolError as error:  # the start of the next frame is unknown
            logging.error("the control channel is lost, and the worker group ends: %s", error)
        except ConnectionError:
            pass
        self.connection.close()
        # An idle group sees the job channel close and stops by itself. A group inside a collective must be ended.
        threading.Timer(LINGER_SECONDS, os._exit, [1]).start()
