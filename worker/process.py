"""The torchrun process of a worker group, kept by a thread that lives as long as it does."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

PACK = Path(__file__).resolve().parents[1]
LOG_TAIL_LINES = 15


class WorkerProcess:
    """Starts `worker.launch` and watches it.

    Linux ends a child with the *thread* that started it (PDEATHSIG); so a thread of our own starts it and stays.
    """

    def __init__(self, ranks: int, environment: Mapping[str, str], log_folder: Path) -> None:
        self.log_folder = log_folder
        log_folder.mkdir(parents=True, exist_ok=True)
        self.report = log_folder / "failure.txt"
        self.command = torchrun_command(ranks, log_folder, self.report)
        self.environment = dict(environment)
        self.popen: subprocess.Popen | None = None
        self.failure: OSError | None = None
        self.exited = threading.Event()
        started = threading.Event()
        threading.Thread(target=self._keep, args=(started,), name="paralleldit-keeper", daemon=True).start()
        started.wait()
        if self.failure:
            raise self.failure

    def _keep(self, started: threading.Event) -> None:
        try:
            with (self.log_folder / "torchrun.log").open("wb") as log:
                self.popen = subprocess.Popen(
                    self.command,
                    cwd=PACK,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C in ComfyUI's terminal is ComfyUI's to handle
                )
        except OSError as error:
            self.failure = error
            return
        finally:
            started.set()
        self.popen.wait()
        self.exited.set()

    def stop(self, patience: float = 0.5) -> None:
        """Ends the group and returns when it is gone. It keeps nothing that would need saving."""
        if not self.exited.wait(patience):
            self.popen.kill()
        self.exited.wait()

    def reason(self) -> str:
        """Why the group ended: the rank that failed first with its signal or traceback, else the end of the log."""
        return self.report.read_text() if self.report.exists() else self.log_tail()

    def log_tail(self) -> str:
        """The last lines of torchrun's own log."""
        try:
            lines = (self.log_folder / "torchrun.log").read_text(errors="replace").splitlines()
        except OSError as error:
            return f"(no log: {error})"
        return "\n".join(lines[-LOG_TAIL_LINES:])


def torchrun_command(ranks: int, log_folder: Path, report: Path) -> Sequence[str]:
    """torchrun on this machine alone: rendezvous on loopback, on a port of the kernel's choice, no restarts."""
    return [
        sys.executable, "-m", "worker.launch", str(report),
        "--nnodes=1", f"--nproc-per-node={ranks}", "--max-restarts=0",
        "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1",
        f"--log-dir={log_folder}", "--redirects=3",
        "-m", "worker.rank",
    ]  # fmt: skip
