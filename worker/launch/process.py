"""Starts and stops the torchrun process of a worker group, and tells why it ended."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import psutil

from ..errors import Explanation
from ..wire.private_folder import is_only_ours
from .logs import log_path, tail
from .torchrun import PACK

FAILURE = "failure.json"  # in the folder of a process
LOG_TAIL_LINES = 15
# Of a process that gives no sign of life, and will give none.
GONE = {
    psutil.STATUS_STOPPED: "it is stopped (SIGSTOP)",
    psutil.STATUS_TRACING_STOP: "a debugger has stopped it",
    psutil.STATUS_ZOMBIE: "its process has ended",
}
GONE_SECONDS, POLL_SECONDS = 10.0, 0.02


class Failure(NamedTuple):
    """Why a part of a group ended. `worker.launch.agent` tells its starter, by a file in JSON.

    rank: the rank of this machine that failed, if one did. of_another: the reason is only that a peer was lost, so the
    root cause is elsewhere.
    """

    reason: Explanation
    rank: int | None = None
    of_another: bool = False

    def write(self, folder: Path) -> None:
        if is_only_ours(folder):  # else a cleaner has removed ours, and somebody has made this
            (folder / FAILURE).write_text(json.dumps({**self._asdict(), "reason": self.reason._asdict()}))


class WorkerProcess:
    """Starts a command and watches it. Raises OSError if it can't be started.

    Linux ends a child together with the *thread* that started it (PDEATHSIG). So a thread of our own starts the
    process and lives as long as it does.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        """command: runs `worker.launch.agent`. folder: for the logs and the reason of a failure; the command names it
        too."""
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(folder / "torchrun", ignore_errors=True)  # from the last start
        (folder / FAILURE).unlink(missing_ok=True)
        self.command = command
        self.environment = dict(environment)
        self.popen: subprocess.Popen[bytes]  # set once the process has started
        self.exited = threading.Event()
        started = Future[None]()
        threading.Thread(target=self._keep, args=(started,), name="paralleldit-keeper", daemon=True).start()
        started.result()

    def _keep(self, started: Future[None]) -> None:
        try:
            with (self.folder / "torchrun.log").open("wb") as log:
                self.popen = subprocess.Popen(
                    self.command,
                    cwd=PACK,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C in ComfyUI's terminal is ComfyUI's to handle
                )
        except Exception as error:
            started.set_exception(error)
            return
        started.set_result(None)
        self.popen.wait()
        self.exited.set()

    def stop(self) -> None:
        """Kills the group, and returns when its processes have ended. They hold nothing that must be saved."""
        try:
            ranks = [rank.pid for rank in psutil.Process(self.popen.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            ranks = []
        self.popen.kill()  # the kernel ends the ranks with it
        self.exited.wait()
        deadline = time.monotonic() + GONE_SECONDS
        while any(map(is_alive, ranks)) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def failure(self) -> Failure:
        """Tells why the group ended: the rank that failed first, with its signal or exception; else torchrun's end.

        The reason's details are the rank's traceback, if there is one, and the end of its log.
        """
        try:
            fields = json.loads((self.folder / FAILURE).read_text() if is_only_ours(self.folder) else "")
            failed = Failure(**{**fields, "reason": Explanation(**fields["reason"])})
        except (OSError, ValueError):  # nothing was written, or in part: the agent was killed, or the disk is full
            code = self.popen.returncode
            how = f"was killed by {signal_name(-code)}" if code and code < 0 else f"ended with exit code {code}"
            return Failure(Explanation(f"torchrun (process {self.popen.pid}) {how}.", details=self.log_tail()))
        tail = "" if failed.rank is None else self.log_tail(failed.rank)
        details = "\n\n".join(filter(None, (failed.reason.details, tail)))
        return failed._replace(reason=failed.reason._replace(details=details))

    def log_tail(self, rank: int | None = None) -> str:
        """Returns the last lines of a rank's log, or of torchrun's; empty if there are none."""
        path = self.folder / "torchrun.log" if rank is None else log_path(self.folder, rank)
        lines = tail(path, LOG_TAIL_LINES)
        return f"The last lines of {path.name}:\n{lines}" if lines else ""


def signal_name(number: int) -> str:
    """Returns a signal's name. Real-time signals have none in Python."""
    return signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"


def is_alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not: it has ended, and in a container may wait long to be reaped."""
    return explain_silence(pid) != GONE[psutil.STATUS_ZOMBIE]


def explain_silence(pid: int) -> str:
    """Says why a process gives no sign of life; empty if it may go on: it computes, or waits for the system."""
    try:
        return GONE.get(psutil.Process(pid).status(), "")
    except psutil.NoSuchProcess:
        return GONE[psutil.STATUS_ZOMBIE]
