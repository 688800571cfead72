"""A socket at which only processes that know the session's token are heard.

Before anything else is read, both ends prove to each other that they know it, by the challenges of `multiprocessing`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from .private_folder import TOKEN, short_path

MAX_STRANGERS = 64  # connections at the same time whose handshake is not over
PATIENCE_SECONDS = 10  # with a handshake
PAUSE_SECONDS = 0.05
BROKEN_LINK = (OSError, EOFError, ValueError, AssertionError, AuthenticationError)  # of a handshake or a message


def listen_at(path: Path) -> socket.socket:
    """Listens at a path, for this user alone. Raises OSError."""
    path.unlink(missing_ok=True)  # the last session's
    listener = socket.socket(socket.AF_UNIX)
    os.fchmod(listener.fileno(), 0o600)  # the file gets this mode
    with short_path(path) as address:
        listener.bind(address)
    listener.listen(MAX_STRANGERS)
    return listener


def connect_to(address: Any, token: str = "") -> Connection:
    """Connects to a `HandshakeServer`. address: a path, or host and port. token: by default, a rank's. Raises
    BROKEN_LINK."""
    key = (token or os.environ[TOKEN]).encode()
    if isinstance(address, Path):
        with socket.socket(socket.AF_UNIX) as connection, short_path(address) as short:
            connection.connect(short)
            link = Connection(connection.detach())
    else:
        link = Connection(socket.create_connection(address).detach())
    bound_reads(link, PATIENCE_SECONDS)
    answer_challenge(link, key)
    deliver_challenge(link, key)
    bound_reads(link, 0)
    return link


def bound_reads(link: Connection, seconds: int) -> None:
    """Makes each read of a connection raise OSError after so many seconds; 0: never."""
    with socket.socket(fileno=os.dup(link.fileno())) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


class HandshakeServer(threading.Thread):
    """Serves each process that knows the token, in a thread of its own. One that says nothing, or nonsense, delays
    nobody: of too many strangers, the oldest is dropped, and so is who speaks slowly. strangers: connections whose
    handshake is not over, and when each came."""

    def __init__(self, listener: socket.socket, token: str, serve: Callable[[socket.socket, Connection], None]) -> None:
        """serve: gets the connection, which it may keep, and the same as a link, which is closed when it returns. It
        may raise BROKEN_LINK."""
        super().__init__(name="handshake", daemon=True)
        self.listener, self.token, self.serve = listener, token.encode(), serve
        self.strangers: dict[socket.socket, float] = {}  # the oldest first
        self.start()

    def run(self) -> None:
        while self.listener.fileno() >= 0:
            try:
                self.listener.settimeout(PATIENCE_SECONDS)
                connection, _ = self.listener.accept()
            except OSError:  # nobody came, it has gone already, or there is no descriptor for it
                time.sleep(PAUSE_SECONDS)  # also lets the others' threads go on if this process has stood still
                for stranger, came in list(self.strangers.items()):
                    if time.monotonic() - came > PATIENCE_SECONDS:
                        self.drop(stranger)
                continue
            for oldest in list(self.strangers)[: 1 - MAX_STRANGERS]:
                self.drop(oldest)
            self.strangers[connection] = time.monotonic()
            try:
                threading.Thread(target=self.greet, args=(connection,), name="handshake-client", daemon=True).start()
            except (OSError, MemoryError, RuntimeError):  # a job uses the memory up; the process tries again
                self.drop(connection)

    def greet(self, connection: socket.socket) -> None:
        try:
            with Connection(os.dup(connection.fileno())) as link:
                deliver_challenge(link, self.token)
                answer_challenge(link, self.token)
                del self.strangers[connection]
                self.serve(connection, link)
        except (*BROKEN_LINK, KeyError, MemoryError):  # KeyError: it was dropped
            self.strangers.pop(connection, None)
            connection.close()

    def drop(self, connection: socket.socket) -> None:
        """Ends a connection unless its handshake is over. Its thread ends, too."""
        if self.strangers.pop(connection, None) is None:
            return
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
