"""`python -m worker.join ADDRESS:PORT`: lends this machine to the worker group of another one, until Ctrl-C.

Run it in the pack's folder; ADDRESS:PORT is the first of that machine's setting `machines`, which also names this one.
Each time a group is started there, it says how many ranks on which device this machine adds; when the group ends, or
the other machine is not heard of any more, the ranks here end too, and this waits for the next one.

`python -m worker.join MACHINES -- COMMAND` is for a cluster's job, where all machines run the same: the first one runs
COMMAND, which is ComfyUI's, the others join it. MACHINES is the setting, or :PORT for the nodes of a Slurm step.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from .errors import Explanation
from .launch.cluster import job_machines, job_place
from .launch.peer import Message, PeerConnection, PeerLost
from .launch.process import WorkerProcess
from .launch.rendezvous import RendezvousError, ask
from .launch.torchrun import Machines, launch_command, rank_environment
from .settings import DEVICES, PREFIX, Settings, SettingsError

WAIT_SECONDS = 1.0
POLL_SECONDS = 0.1
MAX_REASON = 8000  # characters


class Terminated(BaseException):
    """The operator ends this program; no Exception, as nothing on the way shall take it for a failure."""


def main() -> None:
    own, command = split_off(sys.argv[1:])
    parser = argparse.ArgumentParser(
        prog="python -m worker.join",
        usage="%(prog)s ADDRESS:PORT\n       %(prog)s MACHINES -- COMMAND",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("where", metavar="ADDRESS:PORT", help="of the first machine, as its setting `machines` has it")
    where = parser.parse_args(own).where
    if command:
        try:
            where = in_a_job(where, command)
        except (SettingsError, OSError) as error:
            parser.error(str(error))
    address, _, port = where.rpartition(":")
    if not address or not port.isdecimal():
        parser.error(f"{where!r} is no address and port, like 10.0.0.1:29400")

    def stop(_signal: int, _frame: object) -> None:
        raise Terminated

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        with tempfile.TemporaryDirectory(prefix="paralleldit-join-") as folder:
            serve(address, int(port), Path(folder))
    except Terminated:
        say("ended")


def split_off(arguments: list[str]) -> tuple[list[str], list[str]]:
    """This program's own arguments, and the command after the first --."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:cut], arguments[cut + 1 :]


def in_a_job(where: str, command: list[str]) -> str:
    """On the first machine of a cluster's job becomes the command; on the others, where to meet the first.

    Raises SettingsError, and OSError where there is no such command.
    """
    place, machines = job_place(os.environ), job_machines(where, os.environ)
    if place >= len(machines):
        raise SettingsError(f"This is machine {place + 1} of the job, and {','.join(machines)} names {len(machines)}.")
    if place:
        return machines[0]
    environment = dict(os.environ)
    if len(machines) > 1:
        Machines.parse(machines)
        environment[f"{PREFIX}MACHINES"] = ",".join(machines)
    say(f"machine 1 of {len(machines)} runs {' '.join(command)}")
    os.execvpe(command[0], command, environment)


def serve(address: str, port: int, folder: Path) -> None:
    """Joins one group after the other."""
    said = ""
    while True:
        try:
            peer, start = ask(address, port)
        except (OSError, RendezvousError) as error:
            why = f"it {error}" if isinstance(error, PeerLost) else " ".join(str(error).split())
            waiting = f"waiting for a worker group at {address}:{port} ({why})"
            if waiting != said:
                say(waiting)
                said = waiting
            time.sleep(WAIT_SECONDS)
            continue
        said = ""
        try:
            with Membership(peer, start, folder) as membership:
                membership.last()
        finally:
            peer.close()


class Membership:
    """This machine's part in one group: its ranks, and the connection to the first machine."""

    def __init__(self, peer: PeerConnection, start: Message, folder: Path) -> None:
        """start: what the first machine says; every part of it is made the number or the word that it must be."""
        self.peer = peer
        self.lost = ""
        ranks, node, nodes = (int(start[name]) for name in ("ranks", "machine", "machines"))
        self.device = DEVICES[DEVICES.index(start["device"])]
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        own_address = peer.connection.getsockname()[0]
        self.command = [
            *launch_command(sys.executable, ranks, self.folder),
            f"--node={node}", f"--nodes={nodes}", f"--store={start['store']}", f"--address={own_address}",
        ]  # fmt: skip
        self.environment = {**os.environ, **rank_environment(self.device, ranks, self.folder, Settings())}
        say(f"joining as machine {node + 1} of {nodes} with {ranks} rank{'s'[: ranks - 1]} on {self.device}")
        peer.keep(float(start["silence"]))

    def __enter__(self) -> Membership:
        self.process = WorkerProcess(self.command, self.environment, self.folder)
        threading.Thread(target=self._listen, name="listen", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def last(self) -> None:
        """Returns once the ranks have ended, or the first machine is lost; the first machine hears why."""
        while not self.process.exited.wait(POLL_SECONDS) and not self.lost:
            pass
        if self.lost:
            say(f"the first machine {self.lost}; its group has ended")
        elif self.process.popen.returncode == 0:
            say("the group has ended")
        else:
            self._tell_failure()

    def _tell_failure(self) -> None:
        reason = self.process.reason()
        try:
            of_another = self.process.report.read()["of_another"]
        except (OSError, ValueError):  # it could not be written
            of_another = False
        say(f"the ranks here failed: {reason}")
        try:
            self.peer.send({"failed": shortened(reason)._asdict(), "of_another": of_another})
        except PeerLost:
            say("the first machine has gone, too")

    def _listen(self) -> None:
        try:
            while True:
                self.peer.receive()
        except PeerLost as error:
            self.lost = str(error)


def shortened(reason: Explanation) -> Explanation:
    """As much of it as one message carries."""
    left, fields = MAX_REASON, []
    for text in reason:
        fields.append(text[:left])
        left -= len(fields[-1])
    return Explanation(*fields)


def say(text: str) -> None:
    print(f"[ParallelDiT] {text}", flush=True)


if __name__ == "__main__":
    main()
