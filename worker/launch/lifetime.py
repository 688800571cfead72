"""Ends a child process when its parent dies."""

from __future__ import annotations

import ctypes
import os
import signal

PARENT = "PARALLELDIT_PARENT_PID"
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent dies. Exits if the parent has already died. The environment
    variable PARENT names the expected parent."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):
        raise SystemExit("The parent of this worker process has ended.")
    os.environ[PARENT] = str(os.getpid())
