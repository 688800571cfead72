"""The ranks' logs: a file each, of bounded size, which may fail to be written without failing the rank."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections import deque
from pathlib import Path
from typing import Any

from .torchrun import LOG_MEGABYTES, LOGS

TAIL_BYTES = 256 << 10


def log_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def old_path(path: Path) -> Path:
    """Where a log goes when it is rotated."""
    return path.with_name(f"{path.name}.1")


class RankLog:
    """Takes what this process writes to its stdout and stderr, C++ libraries included, into a file.

    Where there is no room for it, or no folder any more, it is lost, and what comes once there is room is not.
    """

    def __init__(self, folder: Path, rank: int, megabytes: float) -> None:
        self.path = log_path(folder, rank)
        self.limit = int(megabytes * (1 << 20))
        self._reopen()
        sys.stdout, sys.stderr = (as_text(descriptor) for descriptor in (1, 2))

    def rotate(self) -> None:
        """Begins a new file where the log is over its size, and keeps the last one; to be called now and then."""
        if not os.path.exists(self.path):  # somebody has taken it away
            self._reopen()
            return
        with contextlib.suppress(OSError):
            if os.fstat(1).st_size <= self.limit:
                return
            os.replace(self.path, old_path(self.path))
            self._reopen()

    def _reopen(self) -> None:
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for standard in (1, 2):
                os.dup2(descriptor, standard)
            os.close(descriptor)


def open_log() -> RankLog:
    """The log of the rank that torchrun has made of this process."""
    rank = int(os.environ["RANK"])
    log = RankLog(Path(os.environ[LOGS]), rank, float(os.environ[LOG_MEGABYTES]))
    style = f"%(asctime)s rank {rank} %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=style, force=True)
    return log


class Unfailing(io.RawIOBase):
    """Writes to a descriptor, and drops what it does not take."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def write(self, text: bytes) -> int:
        left = memoryview(text)
        with contextlib.suppress(OSError):
            while left:
                left = left[os.write(self.descriptor, left) :]
        return len(text)


def as_text(descriptor: int) -> io.TextIOWrapper:
    # The stub asks for a `name`, which is not written to a text stream and a raw one need not have.
    stream: Any = Unfailing(descriptor)
    return io.TextIOWrapper(stream, encoding="utf-8", errors="backslashreplace", write_through=True)


def tail(path: Path, lines: int) -> str:
    """The last lines of a log, at most TAIL_BYTES of it and of the one before; empty where there is none."""
    last: deque[str] = deque(maxlen=lines)
    for part in (old_path(path), path):
        with contextlib.suppress(OSError), part.open("rb") as file:
            file.seek(max(0, part.stat().st_size - TAIL_BYTES))
            last.extend(file.read(TAIL_BYTES).decode(errors="replace").splitlines())
    return "\n".join(last)
