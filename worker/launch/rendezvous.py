"""Where the other machines meet the first: it tells each what to start, and both watch each other from then on.

torchrun tells no machine how many ranks another starts, nor which device they use, and a prompt's plan may change
both. So the first machine's launcher listens at the address in the setting for as long as its group lives, each other
machine asks there, and asks again once the group has ended.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from .peer import HELLO_SECONDS, Line, LineLost, Message
from .torchrun import Machines

VERSION = 1
JOIN_SECONDS = 60


class MeetingError(RuntimeError):
    """The machines do not come together."""


class Meeting:
    """The first machine's side: a line to each of the others.

    Only the addresses in the setting are listened to, and each once.
    """

    def __init__(self, machines: Machines) -> None:
        """Raises MeetingError if this machine cannot be met at its address."""
        self.machines = machines
        self.lines: dict[int, tuple[str, Line]] = {}  # by the machine's place among all: its name, and the line
        try:
            self.places = {socket.gethostbyname(name): place for place, name in enumerate(machines.others, 1)}
            self.address = socket.gethostbyname(machines.address)
            self.listener = socket.create_server((self.address, machines.port))
        except OSError as error:
            raise MeetingError(
                f"The other machines cannot meet this one at {machines.address}:{machines.port} ({error}); the setting "
                "machines takes addresses of machines, this one's first, and a port that nothing else uses."
            ) from error

    def gather(self, start: Message, silence: float, seconds: float = JOIN_SECONDS) -> None:
        """Waits until every machine is there, and tells each what to start.

        start: what all are told. Raises MeetingError, which names those that are missing.
        """
        deadline = time.monotonic() + seconds
        while len(self.lines) < len(self.machines.others):
            self.listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, (address, _) = self.listener.accept()
            except TimeoutError:
                raise MeetingError(self._missing(seconds)) from None
            place = self.places.get(address)
            if place is None or place in self.lines:
                connection.close()
                continue
            self._admit(place, Line(connection), start, silence)
        self.listener.close()

    def watch(self, lost: Callable[[str, bool], None]) -> None:
        """Has `lost` called from another thread, when a machine's ranks have failed or it is not heard of any more.

        It is given why, in words, and whether that machine says that another one's loss was the cause.
        """
        for name, line in self.lines.values():
            threading.Thread(target=self._watch, args=(name, line, lost), name=f"watch-{name}", daemon=True).start()

    def _admit(self, place: int, line: Line, start: Message, silence: float) -> None:
        try:
            hello = line.receive()
            if hello.get("version") != VERSION:
                line.send({"refused": f"this machine speaks version {hello.get('version')}, that one {VERSION}"})
                raise LineLost("speaks another version")
            line.send({**start, "machine": place, "machines": len(self.machines), "silence": silence})
        except LineLost as error:
            print(f"{self.machines.others[place - 1]} came, but {error}", flush=True)
            line.close()
            return
        line.keep(silence)
        name = f"{self.machines.others[place - 1]} ({hello.get('host')})"
        self.lines[place] = (name, line)
        print(f"{name} has joined", flush=True)

    def _missing(self, seconds: float) -> str:
        names = [name for place, name in enumerate(self.machines.others, 1) if place not in self.lines]
        return (
            f"{' and '.join(names)} did not join within {seconds:g} s; run there, in the pack's folder: "
            f"python -m worker.join {self.machines.address}:{self.machines.port}"
        )

    def _watch(self, name: str, line: Line, lost: Callable[[str, bool], None]) -> None:
        try:
            message = line.receive()
        except LineLost as error:
            lost(f"The machine {name} {error}.", False)
            return
        if "failed" in message:
            lost(f"On the machine {name}: {message['failed']}", bool(message.get("of_another")))


def ask(address: str, port: int) -> tuple[Line, Message]:
    """Another machine's side: asks the first what to start.

    Raises OSError while no group is being started there, and MeetingError if the first one refuses.
    """
    line = Line(socket.create_connection((address, port), HELLO_SECONDS))
    try:
        line.send({"version": VERSION, "host": socket.gethostname()})
        start = line.receive()
        if "refused" in start:
            raise MeetingError(f"{address} refuses: {start['refused']}; use the same version of the pack on both.")
    except BaseException:  # Ctrl-C, too
        line.close()
        raise
    return line, start
