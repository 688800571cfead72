"""Forks the ranks of a CPU group off the agent, which has imported what they need: so torch and ComfyUI are imported
once, and not by each rank.

The ranks are forked before the agent has threads, and wait for the environment that torchrun gives them. To torchrun
they are processes like its own: it watches them, and finds the root cause of a failure. Ranks on accelerators are
started anew, because an accelerator that an import has started does not survive a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from .torchrun import DEVICE

POLL_SECONDS = 0.02


def fork_ranks(count: int, module: str) -> list[ForkedRank]:
    """Forks so many ranks, which will run the module's `main`; its `prepare` runs here, once.

    Returns none if the ranks are to be started anew. Call it before anything starts a thread.
    """
    if sys.platform != "linux" or os.environ[DEVICE] != "cpu":
        return []
    importlib.import_module(module).prepare()
    threads = sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))
    if len(threads) > 1:  # a fork would have this thread alone, and the others' locks
        print(f"The ranks are started anew, because this process has threads: {', '.join(threads)}", file=sys.stderr)
        return []
    return [ForkedRank(module) for _ in range(count)]


class ForkedRank:
    """A rank that waits for its environment. torchrun takes it for its handler of a process, and for the process."""

    def __init__(self, module: str) -> None:
        reader, self.writer = os.pipe()
        self.returncode: int | None = None
        self.proc = self
        self.pid = os.fork()
        if not self.pid:
            os.close(self.writer)
            be_rank(reader, module)
        os.close(reader)
        os.setpgid(self.pid, self.pid)  # `close` ends what the rank has started, too

    def start(self, environment: Mapping[str, str]) -> ForkedRank:
        with os.fdopen(self.writer, "w") as pipe:
            pipe.write(json.dumps(dict(environment)) + "\n")
        return self

    def poll(self) -> int | None:
        """As of `subprocess.Popen`."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As of `subprocess.Popen`. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if timeout is not None and deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(POLL_SECONDS)
        return code

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """As of torchrun's handler of a process."""
        os.killpg(self.pid, death_sig or signal.SIGTERM)


def start_forked(ranks: list[ForkedRank]) -> Any:
    """Returns a replacement for torchrun's start function. It hands each waiting rank its environment."""

    def start(*, env: Mapping[str, str], local_rank_id: int, **_: object) -> ForkedRank:
        return ranks[local_rank_id].start({**os.environ, **env})

    return start


def be_rank(reader: int, module: str) -> NoReturn:
    """In a fork: waits for the environment, and runs the module's `main`. Ends at once if the agent has ended."""
    code = 1
    try:
        with os.fdopen(reader) as pipe:
            given = pipe.readline()  # not to the pipe's end, which the ranks forked later hold open
        if given:
            os.environ.update(json.loads(given))
            importlib.import_module(module).main()
        code = 0
    except SystemExit as stop:
        code = code_of(stop)
    except BaseException:  # whatever it is, it ends this rank: the log tells it, and torchrun sees the exit code
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # a full disk must not lead on into the agent's code
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # the agent's own clean-up is not the rank's


def code_of(stop: SystemExit) -> int:
    """Returns the exit code as Python would, and prints the reason if it is one."""
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    return 1
