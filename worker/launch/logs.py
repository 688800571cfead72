"""The ranks' logs: one file a rank, of bounded size. A rank goes on when its log cannot be written."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..wire.private_folder import FOLDER, is_only_ours
from .torchrun import LOG_MEGABYTES

TAIL_BYTES = 256 << 10
STACKS = getattr(signal, "SIGUSR1", 0)  # Windows has neither it nor ranks
STACK_LINES = 80  # of a rank, at most
STACK_SECONDS, POLL_SECONDS = 2.0, 0.1


def log_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def old_path(path: Path) -> Path:
    """Returns the path that a log moves to when it is rotated."""
    return path.with_name(f"{path.name}.1")


class RankLog:
    """Redirects this process's stdout and stderr into a file, including those of C++ libraries.

    While the disk is full or the folder is gone, lines are lost. Later lines are written again.
    """

    def __init__(self, folder: Path, rank: int, megabytes: float) -> None:
        self.path = log_path(folder, rank)
        self.limit = int(megabytes * (1 << 20))
        self._reopen()
        raw: list[Any] = [LossyStream(descriptor, "w", closefd=False) for descriptor in (1, 2)]
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(each, encoding="utf-8", errors="backslashreplace", write_through=True) for each in raw
        )

    def rotate(self) -> None:
        """Starts a new file if the log is over its size, and keeps the last one. Call it now and then."""
        if not os.path.exists(self.path):  # someone has removed it
            self._reopen()
            return
        with contextlib.suppress(OSError):
            if os.fstat(1).st_size <= self.limit:
                return
            os.replace(self.path, old_path(self.path))
            self._reopen()

    def _reopen(self) -> None:
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_only_ours(self.path.parent):  # a cleaner has removed ours, and somebody has made this
                return
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for standard in (1, 2):
                os.dup2(descriptor, standard)
            os.close(descriptor)


def open_log() -> RankLog:
    """Opens the log of this process, which torchrun started as a rank. STACKS makes it write the Python stacks of all
    threads there, even while one holds the GIL."""
    rank = int(os.environ["RANK"])
    log = RankLog(Path(os.environ[FOLDER]), rank, float(os.environ[LOG_MEGABYTES]))
    style = f"%(asctime)s rank {rank} %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=style, force=True)
    faulthandler.register(STACKS, file=2, chain=False)
    return log


class LossyStream(io.FileIO):
    """Writes to a descriptor, and drops what cannot be written."""

    def write(self, text: Any) -> int:
        left = memoryview(text)
        with contextlib.suppress(OSError):
            while left:
                left = left[super().write(left) :]
        return len(text)


def tail(path: Path, lines: int) -> str:
    """Returns the last lines of a log: at most TAIL_BYTES of it and of the one before. Empty if there is no log."""
    last: deque[str] = deque(maxlen=lines)
    for part in (old_path(path), path) if is_only_ours(path.parent) else ():  # as in `RankLog`
        with contextlib.suppress(OSError), part.open("rb") as file:
            file.seek(max(0, part.stat().st_size - TAIL_BYTES))
            last.extend(file.read(TAIL_BYTES).decode(errors="replace").splitlines())
    return "\n".join(last)


def collect_stacks(folder: Path, pids: Sequence[int]) -> str:
    """Makes ranks write the Python stacks of their threads to their logs, and returns the logs' last lines. A rank that
    writes none within STACK_SECONDS, such as a stopped one, is named. pids: of this machine's ranks, from 0 on."""
    logs = [log_path(folder, rank) for rank in range(len(pids))]
    before = [tail(log, STACK_LINES) for log in logs]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACKS)
    deadline, last = time.monotonic() + STACK_SECONDS, list[str]()
    while True:
        now = [tail(log, STACK_LINES) for log in logs]
        is_written = all(own != old for own, old in zip(now, before, strict=True))
        if (is_written and now == last) or time.monotonic() > deadline:
            break
        last = now
        time.sleep(POLL_SECONDS)
    names = (f"rank {rank}{', which did not answer' * (now[rank] == before[rank])}" for rank in range(len(logs)))
    return "\n\n".join(f"The last lines of {name}:\n{own}" for name, own in zip(names, now, strict=True))
