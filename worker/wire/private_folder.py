"""Folders that are this process's own: 0700, and gone once it is, however it ends."""

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
# Signals that end a whole session or service are for the process that it waits for, with which its input ends.
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
    """A new folder, which the caller may remove sooner. Those of processes whose caretaker was killed, too, are removed
    first."""
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-{purpose}-"))
    with contextlib.suppress(OSError):  # without one, the next process removes it
        told = caretaker()
        told.write(f"{folder}\n")
        told.flush()
    return folder


@functools.cache
def caretaker() -> IO[str]:
    """What a process of ours reads that removes the folders it is told of, once this process has ended: one that is
    killed cannot, and SIGTERM kills ComfyUI. Raises OSError."""
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
        started.wait()  # for its child, which goes on, and is nobody's
    if started.stdin is None:
        raise OSError("a pipe was asked for, and there is none")
    return started.stdin


def remove_leftovers() -> None:
    """Removes the folders of processes that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*"):
        owner = NAME.match(folder.name)
        if owner and not psutil.pid_exists(int(owner[1])):
            shutil.rmtree(folder, ignore_errors=True)
