"""Asks rank 0 while a job runs. A question waits for its answer, an order does not."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from ..errors import ConnectionClosed
from ..wire.handshake import BROKEN_LINK, bound_reads, connect_to
from ..wire.json_object import to_bytes
from ..wire.private_folder import CONTROL
from ..wire.protocol import Header

PART_SECONDS = 120  # the longest wait within an answer: a long one comes in two parts, and rank 0 may stop between them
MOST_UNANSWERED = 64  # then no further question is sent


class ControlClient:
    """Rank 0 answers each message in turn. Answers that nobody waits for are dropped. Any thread may use it."""

    def __init__(self, folder: Path, token: str) -> None:
        """folder: of the group. Raises ConnectionError."""
        try:
            self.link = connect_to(folder / CONTROL, token)
        except BROKEN_LINK as error:
            raise ConnectionClosed(f"Rank 0 cannot be reached: {error}.") from error
        bound_reads(self.link, PART_SECONDS)
        self.asking = threading.Lock()
        self.sending = threading.Lock()
        self.unanswered: deque[object] = deque()

    def ask(self, question: Header, patience: float) -> dict[str, Any]:
        """Returns the answer. Raises TimeoutError after `patience` seconds, or if rank 0 could not answer, and
        ConnectionError if the group has died."""
        deadline = time.monotonic() + patience
        if not self.asking.acquire(timeout=patience):
            raise TimeoutError("Another question has no answer yet.")
        try:
            # Rank 0 may read nothing for long; at some number of questions, this would wait with the next.
            own = self._send(question) if len(self.unanswered) < MOST_UNANSWERED else None
            while self.link.poll(max(0.0, deadline - time.monotonic())):
                answer = json.loads(self.link.recv_bytes())
                if self.unanswered.popleft() is own:
                    if "error" in answer:
                        raise TimeoutError(answer["error"])
                    return answer
            raise TimeoutError("Rank 0 has not answered.")
        except TimeoutError:
            raise
        except BROKEN_LINK as error:
            raise ConnectionClosed("The control channel is broken.") from error
        finally:
            self.asking.release()

    def order(self, order: Header) -> None:
        """Sends an order, which needs no answer. Raises ConnectionError if the group has died."""
        self._send(order)

    def close(self) -> None:
        """Closes the link once nobody reads from it. Called when rank 0 has ended, so a question ends at once."""
        with self.asking:
            self.link.close()

    def _send(self, header: Header) -> object:
        own = object()
        with self.sending:
            self.unanswered.append(own)
            try:
                self.link.send_bytes(to_bytes(header))
            except OSError as error:
                raise ConnectionClosed("The control channel is closed.") from error
        return own
