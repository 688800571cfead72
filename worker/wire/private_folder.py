"""Private folders of this process: mode 0700, and removed when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import psutil

PREFIX = "paralleldit"
NAME = re.compile(rf"{PREFIX}-(\d+)-")
# The caretaker ignores signals that end a whole session or service. It ends after its parent, when its input closes.
CARETAKER = """
import os, shutil, signal, sys
if hasattr(os, "fork") and os.fork():
    os._exit(0)
for name in ("SIGHUP", "SIGINT", "SIGTERM"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
for folder in sys.stdin.read().splitlines():
    shutil.rmtree(folder, ignore_errors=True)
"""


def private_folder(purpose: str) -> Path:
    """Creates a folder, which the caller may remove earlier. First removes the folders of processes that are gone."""
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-{purpose}-"))
    with contextlib.suppress(OSError):  # without a caretaker, the next process removes the folder
        folders = start_caretaker()
        folders.write(f"{folder}\n")
        folders.flush()
    return folder


@functools.cache
def start_caretaker() -> IO[str]:
    """Starts a process that removes folders after this one has ended, and returns the pipe for their names.

    This process cannot always do it: SIGTERM kills ComfyUI at once. Raises OSError.
    """
    command = [sys.executable, "-I", "-S", "-c", CARETAKER]
    started = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    if hasattr(os, "fork"):
        started.wait()  # its child goes on, detached
    if started.stdin is None:
        raise OSError("the caretaker has no pipe for its input")
    return started.stdin


def remove_leftovers() -> None:
    """Removes the folders of processes that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*"):
        owner = NAME.match(folder.name)
        if owner and not psutil.pid_exists(int(owner[1])):
            shutil.rmtree(folder, ignore_errors=True)
