"""Network namespaces of a test or benchmark. Needs root on Linux, and iproute2."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from typing_extensions import Self

PREFIX = "paralleldit"
NAMED = Path("/run/netns")  # where iproute2 has the names


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


class Namespaces:
    """One namespace a place while entered, each with its own loopback. On leaving, their processes are killed.

    A process that was killed leaves its own behind: the next one removes them.
    """

    def __init__(self, *places: str) -> None:
        self.names = {place: f"{PREFIX}-{os.getpid()}-{place}" for place in places}

    def __enter__(self) -> Self:
        remove_leftovers()
        try:
            for name in self.names.values():
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            self.connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def connect(self) -> None:
        """What there is beside the loopbacks."""

    def __exit__(self, *_: object) -> None:
        for name in self.names.values():
            remove(name)

    def on(self, place: str, command: Sequence[str]) -> list[str]:
        """The command that runs `command` in that namespace."""
        return ["ip", "netns", "exec", self.names[place], *command]


def remove(name: str) -> None:
    """Removes a namespace, if there is one, with what runs in it."""
    inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
    for pid in inside:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def remove_leftovers() -> None:
    """Removes the namespaces of processes that are gone."""
    for path in NAMED.glob(f"{PREFIX}-*-*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            remove(path.name)


def why_impossible(*tools: str) -> str:
    """Why there can be no namespaces here, or none of the tools that are wanted in them; empty if there can."""
    if not hasattr(os, "geteuid") or os.geteuid():
        return "network namespaces need root"
    missing = [tool for tool in ("ip", *tools) if shutil.which(tool) is None]
    if missing:
        return f"no {' and '.join(missing)} on the PATH"
    try:
        with Namespaces("probe"):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces here: {getattr(error, 'stderr', '') or error}"
