"""Ranks on this machine with a link between them whose bandwidth is set.

The ranks run in one network namespace, whose loopback alone joins them and is limited by tc's token bucket. It carries
what all ranks send, so for N ranks at `rate` it is given N × rate. A veth pair that is limited each way is no better
model of links that carry both ways at once: gloo has one connection a pair of ranks, on which "ready to receive" waits
behind the bytes that this rank sends itself. An exchange at 20 MB/s each way went at 9.6 or 18, as the race between
the two went; over the shared loopback it goes at 17.7 to 19, at 2 and at 4 ranks, all-gather, all-to-all and ring
alike. What one rank sends while the others are silent goes N times as fast as it should: PipeFusion's hand-over, a
broadcast. From some 100 MB/s on gloo's own copying shows: an all-gather at 400 goes at about 270.

Latency is the loopback's own. Ranks need no more than `run` sets: MASTER_ADDR is 127.0.0.1, any port is free, and
gloo is told to use `lo`, as the machine's name leads nowhere in the namespace.
"""

from __future__ import annotations

import os
import subprocess
import sys

from demo.host import REPOSITORY
from tests.support.links.namespaces import Namespaces, ip, why_impossible

TOOLS = ("tc",)
MTU = 9000
BURST_BYTES, BURST_SECONDS = 2 * MTU, 0.001  # what may go at once after a silence, the larger of the two
QUEUE_BYTES = 64 << 20  # nothing is dropped


class Link(Namespaces):
    """The namespace of so many ranks. Raises SystemExit where there can be none."""

    def __init__(self, ranks: int) -> None:
        super().__init__("link")
        self.ranks = ranks
        self.name = self.names["link"]

    def __enter__(self) -> Link:
        if reason := why_impossible(*TOOLS):
            raise SystemExit(
                f"There can be no slow link: {reason}. Run this as root on Linux, with iproute2 installed."
            )
        return super().__enter__()

    def connect(self) -> None:
        ip("-n", self.name, "link", "set", "lo", "mtu", str(MTU))

    def run(self, module: str, *arguments: str, seconds: float) -> None:
        """Runs a module on all ranks, by torchrun, one thread each. Raises where it fails or takes longer."""
        launch = ["-m", "torch.distributed.run", f"--nproc-per-node={self.ranks}", "--master-addr=127.0.0.1"]
        quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # of names of hosts, which there are none of
        environment = {**os.environ, **quiet, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = self.on("link", [sys.executable, *launch, "-m", module, *arguments])
        subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, timeout=seconds)


def limit(name: str, ranks: int, rate: float) -> None:
    """Gives the namespace of that name a new bandwidth: bytes a second that each rank sends. A rank may call it."""
    total = round(ranks * rate)
    burst = max(BURST_BYTES, round(total * BURST_SECONDS))
    bucket = ["tbf", "rate", f"{total}bps", "burst", str(burst), "limit", str(QUEUE_BYTES)]  # tc's bps is bytes
    command = ["tc", "-n", name, "qdisc", "replace", "dev", "lo", "root", *bucket]
    subprocess.run(command, check=True, capture_output=True, text=True)
