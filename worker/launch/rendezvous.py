"""Connects the other machines to the first one. The first tells each what to start; then both watch each other.

torchrun does not tell a machine how many ranks another starts, nor on which device, and a prompt's plan may change
both. So the first machine listens at the address in the setting while its group waits for the others. Each other
machine connects, sends its version, and is told what to start. It connects again once the group has ended.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ..errors import ConnectionClosed, Explanation, WorkerGroupError
from ..settings import DEVICES
from .peer import HELLO_SECONDS, Message, PeerConnection
from .torchrun import Machines

VERSION = 6
STORE = re.compile(r"[\d.]+:\d+")
JOIN_SECONDS = 60


class Start(NamedTuple):
    """What another machine starts. ranks: on it. machine: its node rank, the first's being 0. silence: in seconds, see
    `Settings`. store: the address of torchrun's store. token: of the session."""

    ranks: int
    machine: int
    machines: int
    device: str
    store: str
    token: str
    silence: float

    @classmethod
    def from_json(cls, said: Message, address: str) -> Start:
        """Checks each value, because some end up in a command. Raises WorkerGroupError."""
        start = cls(*(said.get(name) for name in cls._fields))  # pyright: ignore[reportArgumentType]
        counts = (start.ranks, start.machine, start.machines)
        most = max(2, os.cpu_count() or 1)  # a machine has a core for each of its GPUs
        if not (
            all(type(count) is int for count in counts)
            and 0 < start.ranks <= most
            and 0 < start.machine < start.machines
            and start.device in DEVICES
            and isinstance(start.store, str)
            and STORE.fullmatch(start.store)
            and isinstance(start.token, str)
            and isinstance(start.silence, (int, float))
            and 0 < start.silence < math.inf
        ):
            raise WorkerGroupError(f"{address} asks for something that this machine cannot start.")
        return start


class Rendezvous:
    """The first machine's side: a connection to each of the others.

    It accepts only the addresses in the setting, and each once.
    """

    def __init__(self, machines: Machines) -> None:
        """Raises WorkerGroupError if this machine cannot listen at its address."""
        self.machines = machines
        self.peers: dict[int, tuple[str, PeerConnection]] = {}  # by node rank: name and connection
        try:
            self.address = find_own_address(machines)
            self.listener = socket.create_server((self.address, machines.port))
        except OSError as error:
            raise WorkerGroupError(
                f"This machine cannot listen for the others at {machines.address}:{machines.port} ({error}).",
                "Put this machine's address first in the setting machines, with a port that nothing else uses.",
            ) from error

    def gather(self, start: Message, silence: float, seconds: float = JOIN_SECONDS) -> None:
        """Waits until every machine has connected, and tells each what to start.

        start: the message for all of them. Raises WorkerGroupError, which names the missing machines.
        """
        deadline = time.monotonic() + seconds
        while len(self.peers) < len(self.machines.others):
            self.listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, (address, _) = self.listener.accept()
            except TimeoutError:
                raise self._missing(seconds) from None
            node_rank = self._node_rank_of(address)
            if node_rank is None:
                connection.close()
                continue
            self._admit(node_rank, PeerConnection(connection), start, silence)
        self.listener.close()

    def watch(self, lost: Callable[[Explanation, bool], None]) -> None:
        """Calls `lost` from another thread when a machine's ranks fail, or the machine goes silent.

        `lost` gets the reason, and whether that machine blames the loss of another one.
        """
        for name, peer in self.peers.values():
            threading.Thread(target=self._watch, args=(name, peer, lost), name=f"watch-{name}", daemon=True).start()

    def _node_rank_of(self, address: str) -> int | None:
        """Returns the node rank of a missing machine by its address. Looks names up again: a pod's is known once it
        runs."""
        missing = {name: rank for rank, name in enumerate(self.machines.others, 1) if rank not in self.peers}
        return next((rank for name, rank in missing.items() if address_of(name) == address), None)

    def _admit(self, node_rank: int, peer: PeerConnection, start: Message, silence: float) -> None:
        try:
            hello = peer.receive_hello()
            if hello.get("version") != VERSION:
                peer.send({"refused": f"this machine speaks version {hello.get('version')}, that one {VERSION}"})
                raise ConnectionClosed("speaks another version")
            peer.send({**start, "machine": node_rank, "machines": len(self.machines), "silence": silence})
        except ConnectionClosed as error:
            print(f"{self.machines.others[node_rank - 1]} came, but {error}", flush=True)
            peer.close()
            return
        peer.keep(silence)
        name = f"{self.machines.others[node_rank - 1]} ({hello.get('host')})"
        self.peers[node_rank] = (name, peer)
        print(f"{name} has joined", flush=True)

    def _missing(self, seconds: float) -> WorkerGroupError:
        names = [name for node_rank, name in enumerate(self.machines.others, 1) if node_rank not in self.peers]
        unknown = "".join(f" The name {name} is not known here." for name in names if not address_of(name))
        return WorkerGroupError(
            f"{' and '.join(names)} did not join within {seconds:g} s.{unknown}",
            f"Run there, in the pack's folder: python -m worker.join {self.machines.address}:{self.machines.port}",
        )

    def _watch(self, name: str, peer: PeerConnection, lost: Callable[[Explanation, bool], None]) -> None:
        try:
            message = peer.receive()
        except ConnectionClosed as error:
            lost(Explanation(f"The machine {name} {error}."), False)
            return
        failed = message.get("failed")
        fields = failed if isinstance(failed, dict) else {"cause": f"It said {message!r:.100}."}
        said = Explanation(*(str(fields.get(field, "")) for field in Explanation._fields))
        lost(said.because(f"On the machine {name}: "), bool(message.get("of_another")))


def address_of(name: str) -> str:
    """Returns the IPv4 address of a machine; empty if its name is not known."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        return ""


def find_own_address(machines: Machines) -> str:
    """Returns the address at which the others reach this machine. Raises OSError if its name is not known.

    On Debian, a machine's own name means 127.0.1.1. Then we take the address from which it reaches another machine.
    """
    address = socket.gethostbyname(machines.address)
    if address != machines.address and address.startswith("127."):
        for name in machines.others:
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((name, machines.port))  # sends nothing
                return probe.getsockname()[0]
    return address


def ask(address: str, port: int) -> tuple[PeerConnection, Start]:
    """The other machines' side: asks the first machine what to start.

    Raises OSError while no group is starting there, and WorkerGroupError if the first machine refuses.
    """
    peer = PeerConnection(socket.create_connection((address, port), HELLO_SECONDS))
    try:
        peer.send({"version": VERSION, "host": socket.gethostname()})
        said = peer.receive_hello()
        if "refused" in said:
            raise WorkerGroupError(
                f"{address} refuses: {said['refused']!s:.200}.", "Use the same version of the pack on both machines."
            )
        return peer, Start.from_json(said, address)
    except BaseException:  # Ctrl-C, too
        peer.close()
        raise
