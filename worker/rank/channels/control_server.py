"""The control channel at rank 0. It answers while a job runs, and ends the rank when ComfyUI has ended."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from ...wire.protocol import MAX_HEADER, Header, ProtocolError, decode, receive_frame, send_frame

LINGER_SECONDS = 5


class ControlServer(threading.Thread):
    """Answers requests in its own thread. status: returns the ranks'. cancel: of a job, by its id."""

    def __init__(
        self, connection: socket.socket, status: Callable[[], dict[str, Any]], cancel: Callable[[int], None]
    ) -> None:
        super().__init__(name="control", daemon=True)
        self.connection, self.status, self.cancel = connection, status, cancel

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
        """Returns the answer to a request, which is an error if the request is unknown, or the memory full: a job may
        use it up, and goes on without it."""
        try:
            match header:
                case {"op": "status"}:
                    return self.status()
                case {"op": "cancel", "job": int(job)}:
                    self.cancel(job)
                    return {}
        except MemoryError:
            return {"error": f"Rank 0 has no memory for {header['op']!r}."}
        return {"error": f"The control channel knows no request {header!r:.100}; restart ComfyUI."}
