"""`python -m tests.support.runs.cpu_seconds COMMAND...`: CPU-seconds of a command and of all that it starts, by kind of
process. On a machine that others use, too, this tells more than the clock.

A process is looked at a few times a second: of its last moments, only the whole sum knows.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

import psutil

PR_SET_CHILD_SUBREAPER = 36  # whose parent ends comes to this process, and is counted
LOOK_SECONDS, LEFTOVER_SECONDS = 0.15, 15.0
# What a command line has, by the kind of the process; the first that fits.
KINDS = {
    r"chrom.*--type=(\S+)": "Chromium",
    r"chromium": "Chromium",
    r"main\.py": "ComfyUI",
    r"worker\.launch\.agent|worker\.rank\.main": "worker groups",
    r"tests\.support\.ranks\.forks": "forked ranks",
    r"tests\.support\.programs": "programs with ComfyUI's code",
    r"torch\.distributed\.run": "torchrun",
    r"-m pytest|execnet": "pytest",
}


def kind_of(command: Sequence[str]) -> str:
    line = " ".join(command)
    return next((kind for pattern, kind in KINDS.items() if re.search(pattern, line)), "others")


def main(command: list[str]) -> int:
    """Returns the command's exit code."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    seen: dict[psutil.Process, tuple[str, float]] = {}
    process, me = subprocess.Popen(command), psutil.Process()

    def look() -> None:
        for child in me.children(recursive=True):
            try:
                times, line = child.cpu_times(), child.cmdline()
            except psutil.Error:
                continue
            kind = kind_of(line) if line else seen.get(child, ("others", 0.0))[0]
            seen[child] = (kind, times.user + times.system)

    while (code := process.poll()) is None:
        look()
        time.sleep(LOOK_SECONDS)
    until = time.monotonic() + LEFTOVER_SECONDS
    while time.monotonic() < until and me.children(recursive=True):
        look()
        reap()
        time.sleep(LOOK_SECONDS)
    times = os.times()
    sums: Counter[str] = Counter()
    for kind, seconds in seen.values():
        sums[kind] += seconds
    counts = Counter(kind for kind, _ in seen.values())
    print(f"{times.children_user + times.children_system:.1f} CPU-seconds")
    for kind, seconds in sums.most_common():
        print(f"{seconds:8.1f}  {kind} ({counts[kind]} processes)")
    return code


def reap() -> None:
    """Takes over those that have ended, and whose parent had ended before."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
