"""Two machines on one: two network namespaces with a cable between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.links.namespaces import Namespaces, ip

FIRST, SECOND = "10.213.0.1", "10.213.0.2"
TOOLS = ("unshare", "hostname")
PODS = {
    "paralleldit-0.paralleldit": FIRST,
    "paralleldit-1.paralleldit": SECOND,
}  # as a Job's headless service names them


class Network(Namespaces):
    """Namespaces with the addresses FIRST and SECOND, named first and second, and as pods are.

    In each, as Debian has it, the machine's own name is 127.0.1.1.
    """

    def __init__(self) -> None:
        super().__init__("first", "second")

    def connect(self) -> None:
        pods = "".join(f"{address} {pod}\n" for pod, address in PODS.items())
        others = {"first": f"{SECOND} second\n", "second": f"{FIRST} first\n"}
        for place, name in self.names.items():
            folder = Path("/etc/netns") / name  # `ip netns exec` lays its files over those in /etc
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {place}\n{others[place]}{pods}")
        first, second = self.names.values()
        ip("-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second)
        for name, address in zip(self.names.values(), (FIRST, SECOND), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")

    def cable(self, state: str) -> None:
        """Pulls the cable out of the second machine (down), or puts it back (up)."""
        ip("-n", self.names["second"], "link", "set", "cable", state)

    def on(self, place: str, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on that machine, under a host name of its own."""
        return super().on(place, ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', place, *command])
