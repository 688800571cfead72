"""Two machines on one: the one with ComfyUI, and the one that lends itself, each in its network namespace."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from demo.host import REPOSITORY
from tests.support.cases.families import SQUARE
from tests.support.group.direct_group import DIT, wait_until
from tests.support.links.namespaces import Namespaces, ip, why_impossible
from worker.comfyui.source import HostSource
from worker.launch.process import is_alive

FIRST, SECOND = "10.213.0.1", "10.213.0.2"
TOOLS = ("unshare", "hostname")
PODS = {
    "paralleldit-0.paralleldit": FIRST,
    "paralleldit-1.paralleldit": SECOND,
}  # as a Job's headless service names them
PORT = 29400
STARTER = ("env", f"PARALLELDIT_MACHINES={FIRST}:{PORT},{SECOND}")  # of the machine with ComfyUI
SILENCE = 3.0
PATIENCE = 300.0
ULYSSES = {"ulysses": 2}


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


def open_network() -> Network:
    """To be entered; fails the test where there can be none."""
    if reason := why_impossible(*TOOLS):
        pytest.fail(f"{reason}: the tests of two machines run as root on Linux, with iproute2 installed")
    return Network()


def predicted_by_one() -> torch.Tensor:
    """What one process on plain diffusers predicts."""
    with torch.no_grad():
        return DIT.reference(DIT.build(), *DIT.inputs(*DIT.shapes[SQUARE]))


class ToldByLines:
    """A program on the first machine, which gets orders as lines of JSON on stdin and answers each by a line."""

    def __init__(self, network: Network, command: Sequence[str]) -> None:
        self.popen = subprocess.Popen(
            network.on("first", command), cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, **order: Any) -> None:
        self.popen.stdin.write(json.dumps(order) + "\n")
        self.popen.stdin.flush()

    def answer(self) -> dict[str, Any]:
        hung = threading.Timer(PATIENCE, self.popen.kill)
        hung.start()
        while (line := self.popen.stdout.readline()).startswith("[ParallelDiT]"):  # what its starter says
            pass
        hung.cancel()
        assert line, f"it has ended, or gave no answer within {PATIENCE} s; its error is in pytest's own output"
        return json.loads(line)

    def close(self) -> None:
        self.popen.stdin.close()
        self.popen.wait(60)


class First(ToldByLines):
    """The machine with ComfyUI. starter: the command line that starts it there, and says what its machines are."""

    def __init__(self, network: Network, folder: Path, starter: Sequence[str] = STARTER) -> None:
        program = [sys.executable, "-m", "tests.support.group.first_machine", str(SILENCE), str(folder / "logs")]
        super().__init__(network, [*starter, *program])
        self.file = folder / "prediction.safetensors"

    def begin(self, source: HostSource, plan: dict[str, int], **order: bool) -> None:
        self.tell(source=source.to_json(), plan=plan, file=str(self.file), **order)

    def forward(self, source: HostSource, plan: dict[str, int]) -> dict[str, Any]:
        self.begin(source, plan)
        return self.answer()

    def run_endlessly(self, source: HostSource, plan: dict[str, int]) -> list[int]:
        """The process ids of the ranks, that of the second machine last; `answer` then waits for the end of it."""
        self.begin(source, plan, endlessly=True)
        return self.answer()["pids"]

    def prediction(self) -> torch.Tensor:
        return load_file(self.file)["prediction"]


class Second:
    """The machine that lends itself. hidden: a folder that it does not have, but an empty one. size: of the file system
    in its place, as tmpfs takes it. join: the command line on it."""

    def __init__(self, network: Network, log: Path, hidden: Path, join: Sequence[str] = (), size: str = "50%") -> None:
        self.log = log
        join = join or [sys.executable, "-m", "worker.join", f"{FIRST}:{PORT}"]
        mount = 'mount -t tmpfs -o size="$1" none "$0" && shift && exec "$@"'
        command = ["sh", "-c", mount, str(hidden), size, *join]
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                network.on("second", command), cwd=REPOSITORY, stdout=out, stderr=subprocess.STDOUT
            )

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.popen.pid).children(recursive=True)

    def said(self) -> str:
        return self.log.read_text()

    def end(self, number: int = signal.SIGTERM) -> list[psutil.Process]:
        """Ends the program, if it runs, by a signal; returns those of its processes that live five seconds later."""
        if self.popen.poll() is not None:
            return []
        processes = self.processes()
        self.popen.send_signal(number)
        self.popen.wait(10)
        wait_until(lambda: not any(is_alive(process.pid) for process in processes), 5)
        return [process for process in processes if is_alive(process.pid)]
