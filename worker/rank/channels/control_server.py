"""The control channel at rank 0. It answers while a job runs, and ends the rank when ComfyUI has ended."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ...wire.protocol import MAX_HEADER, Header, ProtocolError, decode, receive_frame, send_frame

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
                send_frame(self.connection, self.answer(header))
        except ProtocolError as error:  # the start of the next frame is unknown
            logging.error("the control channel is lost, and the worker group ends: %s", error)
        except ConnectionError:
            pass
        finally:  # also if there is no memory for a frame
            self.connection.close()
            # An idle group sees the job channel close and stops by itself. A group inside a collective must be ended.
            threading.Timer(LINGER_SECONDS, os._exit, [1]).start()

    def answer(self, header: Header) -> Header:
        """Returns the answer to a request, which is an error if the operation is unknown, the request malformed, or the
        memory full: a job may use it up, and goes on without it."""
        name = header.pop("op", None)
        operation = self.operations.get(name) if isinstance(name, str) else None
        if operation is None:
            return {"error": f"The control channel knows no operation {name!r:.100}; restart ComfyUI."}
        try:
            inspect.signature(operation).bind(**header)
        except TypeError as error:
            return {"error": f"The operation {name!r} does not take {header!r:.100}: {error}."}
        try:
            return operation(**header) or {}
        except MemoryError:
            return {"error": f"Rank 0 has no memory for {name!r}."}
