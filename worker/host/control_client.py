"""ComfyUI's side of the control channel. It asks questions and waits for answers; it gives orders and does not wait."""

from __future__ import annotations

import socket
import threading
from collections import deque
from typing import Any

from ..errors import ConnectionClosed
from ..wire.protocol import Header, ProtocolError, decode, receive_frame, send_frame


class ControlClient:
    """Rank 0 answers each frame in turn. Answers that nobody waits for are dropped. Any thread may use it."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.asking = threading.Lock()
        self.sending = threading.Lock()
        self.unanswered: deque[object] = deque()

    def ask(self, question: Header, patience: float) -> dict[str, Any]:
        """Returns the answer. Raises TimeoutError after `patience` seconds, or if rank 0 could not answer, and
        ConnectionError if the group has died."""
        if not self.asking.acquire(timeout=patience):
            raise TimeoutError("Another question has no answer yet.")
        try:
            own = self._send(question)
            self.control.settimeout(patience)
            while True:
                answer, _ = decode(receive_frame(self.control))
                if self.unanswered.popleft() is own:
                    if "error" in answer:
                        raise TimeoutError(answer["error"])
                    return answer
        except TimeoutError:
            raise
        except (OSError, ProtocolError) as error:
            raise ConnectionClosed("The control channel is broken.") from error
        finally:
            self.asking.release()

    def order(self, order: Header) -> None:
        """Sends an order, which needs no answer. Raises ConnectionError if the group has died."""
        self._send(order)

    def close(self) -> None:
        self.control.close()

    def _send(self, header: Header) -> object:
        own = object()
        with self.sending:
            self.unanswered.append(own)
            try:
                send_frame(self.control, header)
            except OSError as error:
                raise ConnectionClosed("The control channel is closed.") from error
        return own
