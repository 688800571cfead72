"""Private folders of this process: mode 0700, and removed when the process ends, however it ends.

A folder lives as long as a process holds the lock (flock) of the file LOCK in it. A folder without this file is
somebody's own, whatever its name is. A PID would say less: containers that share /tmp have the same PIDs for different
processes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil

from ..errors import NoRoomError, format_bytes

try:
    import fcntl
except ImportError:  # on Windows, where no group starts
    fcntl = None

# The variables with a group's folder, with its session's token, which a process needs to belong to the group, with the
# source of the first model that the ranks will load, as JSON, and with ComfyUI's version of the protocol.
FOLDER, TOKEN, EXPECTED = "PARALLELDIT_FOLDER", "PARALLELDIT_TOKEN", "PARALLELDIT_EXPECTED"
PROTOCOL = "PARALLELDIT_PROTOCOL"
# In a group's folder: where the ranks of a machine find each other, and rank 0's socket, to which ComfyUI and the other
# ranks connect.
STORE, CONTROL = "store", "control"
PREFIX, LOCK = "paralleldit", ".lock"
# The variables with the folders in which torch and Triton keep compiled code, and read it as pickles.
COMPILED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
MEMORY = Path("/dev/shm")  # a file system in memory
IN_MEMORY = ("tmpfs", "ramfs")  # the kinds of such file systems
SPARE = 256 << 20  # bytes that stay free beside weights
SECONDS_TO_LOCK = 60.0  # a younger file may not be locked yet
_own_folders: dict[Path, Path] = {}  # see `own_folder`
# The caretaker ignores signals that end a whole session or service. It ends after its parent, when its input closes.
CARETAKER = """
import os, shutil, signal, sys
if os.fork():
    os._exit(0)
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
for folder in sys.stdin.read().splitlines():
    shutil.rmtree(folder, ignore_errors=True)
"""


def private_folder(purpose: str, parent: Path | None = None) -> Path:
    """Creates a folder, which the caller may remove earlier. First removes this user's folders that nobody uses.
    parent: where; by default, where temporary files are."""
    parent = parent or Path(tempfile.gettempdir())
    remove_leftovers(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{purpose}-", dir=parent))
    if fcntl:
        fcntl.flock(os.open(folder / LOCK, os.O_RDONLY | os.O_CREAT, 0o600), fcntl.LOCK_EX)  # until this process ends
        with contextlib.suppress(OSError):  # systemd-tmpfiles removes old files, but not from a locked folder
            fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)
        with contextlib.suppress(OSError):  # without a caretaker, the next process removes the folder
            folders = start_caretaker()
            folders.write(f"{folder}\n")
            folders.flush()
    return folder


def find_room(size: int, free: float) -> Path:
    """Returns a private folder with room for weights of this many bytes: in memory, or else on the disk. free: the
    bytes of RAM that are free. Raises NoRoomError."""
    on_disk = Path(tempfile.gettempdir())
    for parent, most in ((MEMORY, free), (on_disk, free if is_in_memory(on_disk) else float("inf"))):
        with contextlib.suppress(OSError):  # the folder cannot be used
            if min(shutil.disk_usage(parent).free, most) > size + SPARE:
                return own_folder(parent)
    raise NoRoomError(
        f"The ranks need its weights in a file. Neither {MEMORY} nor {on_disk} has {format_bytes(size)} free for it.",
        "Make room there, or set TMPDIR to another folder.",
    )


def is_in_memory(folder: Path) -> bool:
    """Whether a folder's file system is in memory, as some systems have /tmp."""
    kinds = {each.mountpoint: each.fstype for each in psutil.disk_partitions(all=True)}
    folder = folder.resolve()
    return next((kinds[str(each)] for each in (folder, *folder.parents) if str(each) in kinds), "") in IN_MEMORY


def own_folder(parent: Path) -> Path:
    """Returns this process's folder for weights, a new one once somebody has removed the last."""
    if (folder := _own_folders.get(parent)) is None or not is_only_ours(folder):
        folder = _own_folders[parent] = private_folder("weights", parent)
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
    started.wait()  # its child goes on, detached
    if started.stdin is None:
        raise OSError("the caretaker has no pipe for its input")
    return started.stdin


def keep_compiled_code(folder: Path) -> None:
    """Makes torch keep the code that this process and its children compile in the folder. By default, it would be in
    /tmp under a known name, where another user may have put pickles before. The environment's own folders stay if only
    this user can write to them. Not on Windows."""
    for name in COMPILED if fcntl else ():
        if not (given := os.environ.get(name)) or not is_only_ours(Path(given)):
            own = folder / name.partition("_")[0].lower()
            with contextlib.suppress(OSError):
                own.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_only_ours(own):
                logging.warning("[ParallelDiT] Others can write to %s, so compiled code is not kept there.", own)
                own = private_folder("compiled")
            os.environ[name] = str(own)


def is_only_ours(folder: Path) -> bool:
    """Whether a path is a folder of this user, and nobody else can write to it. False on Windows."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return bool(fcntl) and stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o022


def remove_leftovers(parent: Path) -> None:
    """Removes this user's folders that nobody holds any more. What cannot be removed stays, and keeps nothing else."""
    for folder in parent.glob(f"{PREFIX}-*"):
        # A deep tree may not be walked to its end.
        with contextlib.suppress(OSError, RecursionError):
            if is_leftover(folder):
                shutil.rmtree(folder)


def is_leftover(folder: Path) -> bool:
    """Whether a folder is one of this user's private ones, and no process holds it. Raises OSError, also for a folder
    without the file of the lock."""
    if fcntl is None or not is_only_ours(folder):
        return False
    descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if time.time() - os.fstat(descriptor).st_mtime < SECONDS_TO_LOCK:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Within it, a name of the path that is short enough for an AF_UNIX address, which has at most 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
