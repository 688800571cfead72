"""A real rank in a process of its own, and the two channels to it, for all that a client could do to it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

from demo.host import REPOSITORY
from worker.launch.lifetime import PARENT
from worker.wire.handshake import BROKEN_LINK, HandshakeServer, connect_to
from worker.wire.job_channel import ask_for_channel
from worker.wire.json_object import parse_object, to_bytes
from worker.wire.private_folder import CONTROL, FOLDER, PROTOCOL, TOKEN
from worker.wire.protocol import VERSION, Header, decode, encode, receive_frame, send_pieces
from worker.wire.tensors import Tensors

START_SECONDS = 120
ANSWER_SECONDS = 120


def close_server(server: HandshakeServer) -> None:
    """Ends a server, whose processes stay."""
    server.listener.shutdown(socket.SHUT_RDWR)
    server.listener.close()


class OneRank(AbstractContextManager["OneRank"]):
    """A group of one rank on the CPU. folder: for its log. module: what its process runs. version: that it is told."""

    def __init__(self, folder: Path, module: str = "worker.rank.main", version: int = VERSION) -> None:
        self.log = folder / "rank.log"
        token = secrets.token_hex(32)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    TOKEN: token,
                    PROTOCOL: str(version),
                    **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0"),
                    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"), "1"),
                    "PARALLELDIT_DEVICE": "cpu",
                    "PARALLELDIT_GPUS": "",
                    FOLDER: str(folder),
                    "PARALLELDIT_LOG_MEGABYTES": "8",
                    PARENT: str(os.getpid()),
                },
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + START_SECONDS
        while True:
            assert self.process.poll() is None and time.monotonic() < until, self.said()
            try:
                self.job = ask_for_channel(folder / CONTROL, token)
                break
            except BROKEN_LINK:
                time.sleep(0.1)
        self.job.settimeout(ANSWER_SECONDS)
        assert decode(receive_frame(self.job))[0].keys() == {"has_memory"}, self.said()
        self.control = connect_to(folder / CONTROL, token)
        self.last_id = 0

    def __exit__(self, *_: object) -> None:
        self.job.close()
        self.control.close()
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        """All that it has written so far: its own log, or where that was redirected to."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.log.parent.glob("*.log")))

    def request(self, header: Header, tensors: Tensors | None = None) -> tuple[Header, Tensors]:
        """The reply to a request on the job channel, without the events before it."""
        self.last_id += 1
        send_pieces(self.job, encode({"id": self.last_id, **header}, tensors))
        reply: Header = {"event": ""}
        while "event" in reply:
            reply, results = decode(receive_frame(self.job))
        return reply, results

    def ask(self, header: Header) -> Header:
        """The reply of the control channel."""
        self.control.send_bytes(to_bytes(header))
        assert self.control.poll(ANSWER_SECONDS)
        return parse_object(self.control.recv_bytes())
