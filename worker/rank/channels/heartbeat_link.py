"""Rank 0's socket in the group's folder, to which ComfyUI connects its two channels, and the ranks their heartbeats.
Those between machines come through TCP."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...launch.torchrun import is_one_machine
from ...wire.handshake import BROKEN_LINK, MAX_STRANGERS, HandshakeServer, connect_to, listen_at
from ...wire.job_channel import JOB
from ...wire.json_object import parse_object, to_bytes
from ...wire.private_folder import CONTROL, FOLDER, TOKEN

PORT = "paralleldit/heartbeat"  # the key of the port, if there are several machines
MAX_BYTES = 64 << 10  # of a message

Message = dict[str, Any]
Hear = Callable[[Message], Message]  # takes a rank's message, and returns the answer


def serve_links(hear: Hear, job: Future[socket.socket], store: dist.Store) -> list[HandshakeServer]:
    """Answers ComfyUI and the other ranks on rank 0. job: gets the connection of the job channel, which only a process
    of this machine can take, and only one. store: where ranks find the port, if there are several machines. Raises
    OSError."""

    def serve(connection: socket.socket, link: Connection) -> None:
        while True:  # until it breaks; a rank renews its connection
            message = parse_object(link.recv_bytes(MAX_BYTES))
            if message == JOB and connection.family == socket.AF_UNIX:
                break
            link.send_bytes(to_bytes(hear(message)))
        try:
            job.set_result(connection)
        except InvalidStateError as error:
            raise ValueError("The job channel was taken before.") from error

    listeners = [listen_at(Path(os.environ[FOLDER]) / CONTROL)]
    if not is_one_machine():
        listeners.append(socket.create_server((os.environ["MASTER_ADDR"], 0), backlog=MAX_STRANGERS))
        store.set(PORT, str(listeners[-1].getsockname()[1]))
    return [HandshakeServer(each, os.environ[TOKEN], serve) for each in listeners]


class HeartbeatLink:
    """Another rank's connection to rank 0."""

    def __init__(self, store: dist.Store) -> None:
        """store: see `serve_links`. Raises what `connect` raises."""
        self.store = store
        self.lock = threading.Lock()
        self.link = self.connect()

    def connect(self) -> Connection:
        """Connects to rank 0. Raises BROKEN_LINK."""
        if is_one_machine():
            return connect_to(Path(os.environ[FOLDER]) / CONTROL)
        return connect_to((os.environ["MASTER_ADDR"], int(self.store.get(PORT))))

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
