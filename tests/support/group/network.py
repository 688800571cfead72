"""Two machines on one: two network namespaces with a cable between them. Needs root on Linux, and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

FIRST, SECOND = "10.213.0.1", "10.213.0.2"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Network:
    """Namespaces with the addresses FIRST and SECOND. In each, as Debian has it, the machine's name is 127.0.1.1."""

    def __init__(self) -> None:
        self.names = {place: f"paralleldit-{os.getpid()}-{place}" for place in ("first", "second")}

    def __enter__(self) -> Network:
        try:
            for place, name in self.names.items():
                ip("netns", "add", name)
                folder = Path("/etc/netns") / name  # `ip netns exec` lays its files over those in /etc
                folder.mkdir(parents=True)
                (folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {place}\n")
            first, second = self.names.values()
            ip("-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second)
            for name, address in zip(self.names.values(), (FIRST, SECOND), strict=True):
                ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                ip("-n", name, "link", "set", "cable", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)

    def cable(self, state: str) -> None:
        """Pulls the cable out of the second machine (down), or puts it back (up)."""
        ip("-n", self.names["second"], "link", "set", "cable", state)

    def on(self, place: str, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on that machine, under a host name of its own."""
        inside = ["sh", "-c", 'hostname "$0" && exec "$@"', place, *command]
        return ["ip", "netns", "exec", self.names[place], "unshare", "--uts", *inside]


def why_impossible() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if not hasattr(os, "geteuid") or os.geteuid():
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "unshare", "hostname") if shutil.which(tool) is None]
    if missing:
        return f"no {' and '.join(missing)} on the PATH"
    try:
        with Network():
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces here: {getattr(error, 'stderr', '') or error}"
