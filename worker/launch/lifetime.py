"""A child that must not outlive its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "PARALLELDIT_PARENT_PID"
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent dies (Linux); exits if the parent has died already.

    The environment variable PARENT names the expected parent. Elsewhere than on Linux, the closed socket ends rank 0,
    and with it the group.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):
        raise SystemExit("The parent of this worker process has gone.")
    os.environ[PARENT] = str(os.getpid())
