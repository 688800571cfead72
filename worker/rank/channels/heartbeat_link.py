"""Carries the ranks' heartbeats to rank 0: through a socket in the group's folder, or between machines through TCP.

Before anything else is read, both ends prove to each other that they know the session's token.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from ...launch.torchrun import is_one_machine
from ...wire.private_folder import FOLDER, TOKEN, short_path

SOCKET = "heartbeat"  # in the group's folder
PORT = "paralleldit/heartbeat"  # the key of the port, if there are several machines
MAX_BYTES = 64 << 10  # of a message
MAX_STRANGERS = 64  # connections at the same time whose handshake is not over
PATIENCE_SECONDS = 10  # with a silent connection; a rank renews its own
BROKEN_LINK = (OSError, EOFError, ValueError, AssertionError, AuthenticationError)  # of a handshake or a message

open_link: Callable[..., Connection] = cast("Any", Client)  # which on Windows returns another class

Message = dict[str, Any]
Hear = Callable[[Message], Message]  # takes a rank's message, and returns the answer


class HeartbeatServer(threading.Thread):
    """Answers the other ranks on rank 0, each in a thread of its own."""

    def __init__(self, hear: Hear, store: dist.Store) -> None:
        """store: where the other ranks find the port, if there are several machines. Raises OSError."""
        super().__init__(name="heartbeat-server", daemon=True)
        self.hear = hear
        self.strangers = threading.Semaphore(MAX_STRANGERS)
        path = Path(os.environ[FOLDER]) / SOCKET
        if is_one_machine():
            path.unlink(missing_ok=True)  # the last session's
            self.listener = socket.socket(socket.AF_UNIX)
            with short_path(path) as address:
                self.listener.bind(address)
            self.listener.listen(MAX_STRANGERS)
        else:
            self.listener = socket.create_server((os.environ["MASTER_ADDR"], 0), backlog=MAX_STRANGERS)
            store.set(PORT, str(self.listener.getsockname()[1]))

    def run(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PATIENCE_SECONDS, 0))
            link = Connection(connection.detach())
            if not self.strangers.acquire(blocking=False):
                link.close()
                continue
            try:
                threading.Thread(target=self.serve, args=(link,), name="heartbeats", daemon=True).start()
            except (MemoryError, RuntimeError):  # a job uses the memory up; the rank tries again
                self.strangers.release()
                link.close()

    def serve(self, link: Connection) -> None:
        """Answers one connection until it breaks."""
        try:
            try:
                deliver_challenge(link, token())
                answer_challenge(link, token())
            finally:
                self.strangers.release()
            while True:
                link.send_bytes(to_bytes(self.hear(json.loads(link.recv_bytes(MAX_BYTES)))))
        except (*BROKEN_LINK, MemoryError):
            link.close()


class HeartbeatLink:
    """Another rank's connection to rank 0."""

    def __init__(self, store: dist.Store) -> None:
        """store: see `HeartbeatServer`. Raises what `connect` raises."""
        self.store = store
        self.lock = threading.Lock()
        self.link = self.connect()

    def connect(self) -> Connection:
        """Connects to rank 0. Raises BROKEN_LINK."""
        if not is_one_machine():
            return open_link((os.environ["MASTER_ADDR"], int(self.store.get(PORT))), authkey=token())
        with short_path(Path(os.environ[FOLDER]) / SOCKET) as address:
            return open_link(address, authkey=token())

    def ask(self, message: Message) -> Message:
        """Sends a message to rank 0, and returns its answer. Renews a broken connection once. Any thread may call it.
        Raises BROKEN_LINK."""
        with self.lock:
            try:
                return self.exchange(message)
            except BROKEN_LINK:
                self.link.close()
                self.link = self.connect()
                return self.exchange(message)

    def exchange(self, message: Message) -> Message:
        self.link.send_bytes(to_bytes(message))
        return json.loads(self.link.recv_bytes(MAX_BYTES))


def to_bytes(message: Message) -> bytes:
    return json.dumps(message).encode()


def token() -> bytes:
    return os.environ[TOKEN].encode()
