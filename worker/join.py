"""`python -m worker.join ADDRESS:PORT` lends this machine to the worker group of another one, until Ctrl-C.

Run it in the pack's folder. ADDRESS:PORT is the first entry of the setting `machines` on the other machine, which must
also name this one. When a group starts there, that machine tells how many ranks to start here, and on which device.
When the group ends or the other machine goes silent, the ranks here end too, and the program waits for the next group.

`python -m worker.join MACHINES -- COMMAND` is for a cluster's job, in which all machines run the same command. The
first machine runs COMMAND, which starts ComfyUI; the others join it. MACHINES is the setting.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import wait
from pathlib import Path

from .errors import ConnectionClosed, Explanation, WorkerGroupError
from .launch.peer import PeerConnection
from .launch.process import Failure, WorkerProcess
from .launch.rendezvous import Start, ask
from .launch.torchrun import Machines, launch_command, rank_environment
from .settings import PREFIX, Settings, SettingsError
from .wire.private_folder import TOKEN, is_only_ours, keep_compiled_code, private_folder

# The variables with a machine's number in its job: for a pod of an indexed Job, and for a node in a Slurm step.
NODE_RANKS = ("JOB_COMPLETION_INDEX", "SLURM_NODEID")
TASK_OF_NODE = "SLURM_LOCALID"
WAIT_SECONDS = 1.0
POLL_SECONDS = 0.1
MAX_REASON = 3000  # characters of each part


class StopSignal(BaseException):
    """The operator ends this program. It is not an Exception, so that no handler takes it for a failure."""


def main() -> None:
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    command = arguments[cut + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m worker.join",
        usage="%(prog)s ADDRESS:PORT\n       %(prog)s MACHINES -- COMMAND",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("where", metavar="ADDRESS:PORT", help="of the first machine, as its setting `machines` has it")
    where = parser.parse_args(arguments[:cut]).where
    machines = where.split(",")
    address, _, port = machines[0].rpartition(":")
    if not address or not port.isdecimal() or (len(machines) > 1 and not command):
        parser.error(f"{where!r} is not an address with a port, like 10.0.0.1:29400")
    if command:
        try:
            run_on_first(machines, command)
        except (SettingsError, OSError) as error:
            parser.error(str(error))

    def stop(_signal: int, _frame: object) -> None:
        raise StopSignal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        keep_compiled_code(Path.home() / ".cache" / "paralleldit")
        serve(address, int(port), private_folder("join"))
    except StopSignal:
        say("ended")


def run_on_first(machines: list[str], command: list[str]) -> None:
    """Replaces this program with the command on the first machine of a job. Returns on the others.

    Raises SettingsError, and OSError if the command does not exist.
    """
    node_rank = read_node_rank(os.environ)
    if node_rank >= len(machines):
        raise SettingsError(
            f"This is machine {node_rank + 1} of the job, but {','.join(machines)} names only {len(machines)}."
        )
    if node_rank:
        return
    environment = dict(os.environ)
    if len(machines) > 1:
        Machines.parse(machines)
        environment[f"{PREFIX}MACHINES"] = ",".join(machines)
    say(f"machine 1 of {len(machines)} runs {' '.join(command)}")
    os.execvpe(command[0], command, environment)  # noqa: S606 (what a person has written behind `worker.join`)


def read_node_rank(environment: Mapping[str, str]) -> int:
    """Returns this machine's node rank: its number in its job, from 0. Raises SettingsError."""
    number = next((environment[name] for name in NODE_RANKS if environment.get(name)), "")
    if not number.isdecimal():
        raise SettingsError(
            f"This machine's number in the job is unknown: {' and '.join(NODE_RANKS)} are not set.",
            "Start it with Slurm's srun or as a Kubernetes Job with completionMode Indexed, or leave out the command.",
        )
    if environment.get(TASK_OF_NODE, "0") != "0":
        raise SettingsError("Slurm started this more than once on a node.", "Use srun --ntasks-per-node=1.")
    return int(number)


def serve(address: str, port: int, folder: Path) -> None:
    """Joins one group after another, without end."""
    said = ""
    while True:
        try:
            peer, start = ask(address, port)
        except (OSError, WorkerGroupError) as error:
            why = f"it {error}" if isinstance(error, ConnectionClosed) else " ".join(str(error).split())
            waiting = f"waiting for a worker group at {address}:{port} ({why})"
            if waiting != said:
                say(waiting)
                said = waiting
            time.sleep(WAIT_SECONDS)
            continue
        said = ""
        try:
            if not is_only_ours(folder):  # a cleaner has removed it
                folder = private_folder("join")
            take_part(peer, start, folder)
        except OSError as error:  # the disk may be full
            tell_failure(peer, Failure(Explanation(f"The worker group cannot be started: {error}")))
        finally:
            peer.close()


def take_part(peer: PeerConnection, start: Start, folder: Path) -> None:
    """Runs this machine's ranks of one group until they end or the first machine is lost. Tells the first machine if
    they failed. folder: in which they get one of their own. Raises OSError if they cannot be started."""
    own, address = Path(tempfile.mkdtemp(dir=folder)), peer.connection.getsockname()[0]
    command = [
        *launch_command(sys.executable, start.ranks, own), f"--node={start.machine}", f"--nodes={start.machines}",
        f"--store={start.store}", f"--address={address}",
    ]  # fmt: skip
    variables = rank_environment(start.device, start.ranks, own, Settings())
    ranks = f"{start.ranks} rank{'s'[: start.ranks - 1]} on {start.device}"
    say(f"joining as machine {start.machine + 1} of {start.machines} with {ranks}")
    peer.keep(start.silence)
    process = WorkerProcess(command, {**os.environ, **variables, TOKEN: start.token}, own)
    try:
        while not process.exited.wait(POLL_SECONDS) and not wait([peer.connection], 0):
            pass
        if wait([peer.connection], 0):
            peer.receive()  # raises ConnectionClosed if the first machine is gone; it says nothing after the start
            raise ConnectionClosed("said something unknown")
        elif process.popen.returncode == 0:
            say("the group has ended")
        else:
            tell_failure(peer, process.failure())
    except ConnectionClosed as error:
        say(f"the first machine {error}; its group has ended")
    finally:
        process.stop()
        shutil.rmtree(own, ignore_errors=True)


def tell_failure(peer: PeerConnection, failure: Failure) -> None:
    """Says why the ranks failed, here and on the first machine."""
    say(f"the ranks here failed: {failure.reason}")
    try:
        short = Explanation(*(text[:MAX_REASON] for text in failure.reason))  # as one message can carry it
        peer.send({"failed": short._asdict(), "of_another": failure.of_another})
    except ConnectionClosed:
        say("the first machine is gone too")


def say(text: str) -> None:
    print(f"[ParallelDiT] {text}", flush=True)


if __name__ == "__main__":
    main()
