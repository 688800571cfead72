"""Judges a silent rank of this machine by what the system tells of its process. A rank is alive if it computes, or if
it waits for a CPU, for a disk, or for a program that it starts."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
AT_LEAST = 0.1  # of a silence, that a living rank runs or waits for a CPU; threads that only poll take less
WAITS = "RD"  # states: for a CPU; for a disk, or for a program that starts, such as a compiler
ENDED = {"T": "it is stopped (SIGSTOP)", "t": "a debugger has stopped it", "Z": "its process has ended"}
UNKNOWN = "it is stopped, or stuck"


class Thread(NamedTuple):
    """A thread of a process. state: see proc(5). ran, waited: seconds so far on a CPU, and waiting for one; the latter
    is 0 if the kernel does not count it."""

    state: str
    ran: float
    waited: float


def list_threads(pid: int) -> dict[int, Thread]:
    """Returns the threads of a process by their numbers; none if the process or the system's /proc is missing."""
    found = {}
    for task in PROC.glob(f"{pid}/task/*"):
        with contextlib.suppress(OSError):  # the thread has ended
            state, *fields = (task / "stat").read_text().rpartition(")")[2].split()
            ran, waited = sum(map(int, fields[10:12])) / os.sysconf("SC_CLK_TCK"), 0.0
            if (counted := task / "schedstat").is_file():
                ran, waited = (int(count) / 1e9 for count in counted.read_text().split()[:2])
            found[int(task.name)] = Thread(state, ran, waited)
    return found


class Silence:
    """One silence of one rank's process. It begins with the first look, when the rank is noticed to be silent."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.began = time.monotonic()
        self.threads = list_threads(pid)
        self.is_logged = False

    def log(self, said: str) -> None:
        """Logs it, once for this silence."""
        if not self.is_logged:
            self.is_logged = True
            logging.warning("[ParallelDiT] %s", said)

    def look(self) -> tuple[bool, str]:
        """Returns whether the process goes on, and what was seen since the first look."""
        threads, seconds = list_threads(self.pid), time.monotonic() - self.began
        if self.pid not in threads:
            return False, ENDED["Z"] if PROC.is_dir() else UNKNOWN
        if seen := ENDED.get(threads[self.pid].state):
            return False, seen
        before = {number: self.threads.get(number, Thread("", 0.0, 0.0)) for number in threads}
        ran = sum(thread.ran - before[number].ran for number, thread in threads.items())
        waited = max(thread.waited - before[number].waited for number, thread in threads.items())
        waits = any(thread.state in WAITS for thread in threads.values())
        seen = f"in the last {seconds:.0f} s its process ran for {ran:.1f} s and waited {waited:.1f} s for a CPU"
        return waits or ran + waited >= AT_LEAST * seconds, seen
