"""Forks the ranks of a CPU group off the agent, which has imported what they need: so torch and ComfyUI are imported
once, and not by each rank.

The ranks are forked before the agent has threads, and wait for the environment that torchrun gives them. To torchrun
they are processes like its own: it watches them, and finds the root cause of a failure. Ranks on accelerators are
started anew, because an accelerator that an import has started does not survive a fork.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from .torchrun import DEVICE


def fork_ranks(count: int, module: str) -> list[ForkedRank]:
    """Forks so many ranks, which will run the module's `main`; its `prepare` runs here, once.

    Returns none if the ranks are to be started anew. Call it before anything starts a thread.
    """
    if os.environ[DEVICE] != "cpu":
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
        fork = multiprocessing.get_context("fork")
        reader, self.writer = fork.Pipe(duplex=False)
        self.proc = self
        self.process = fork.Process(target=be_rank, args=(reader, self.writer, module))
        self.process.start()
        reader.close()
        os.setpgid(self.pid, self.pid)  # `close` ends what the rank has started, too

    def start(self, environment: Mapping[str, str]) -> ForkedRank:
        self.writer.send_bytes(json.dumps(dict(environment)).encode())
        return self

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    def poll(self) -> int | None:
        """As of `subprocess.Popen`."""
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """As of `subprocess.Popen`. Raises subprocess.TimeoutExpired."""
        self.process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a rank", timeout or 0)
        return code

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """As of torchrun's handler of a process."""
        os.killpg(self.pid, death_sig or signal.SIGTERM)


def be_rank(reader: Connection, writer: Connection, module: str) -> None:
    """In a fork: waits for the environment, and runs the module's `main`. Ends at once if the agent has ended."""
    writer.close()
    try:
        environment = json.loads(reader.recv_bytes())
    except EOFError:
        return
    os.environ.update(environment)
    importlib.import_module(module).main()
