"""`python -m worker.launch.agent`: this machine's part of a worker group: torchrun, which dies with its parent.

When a rank fails, the root cause is written to the folder for the node's error.

The rendezvous is torchrun's static one at a c10d store. Its other one, which torchrun calls c10d, keeps its state in
the same store as a pickle that anyone who reaches the port can replace, and orders machines by their addresses; here
nothing is unpickled, and the first machine has rank 0, which talks to ComfyUI. The store is opened here, because
torchrun's own would listen on every network; this one does on the loopback, or on the network that the machines share.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Explanation
from .imports import collector_at_rest
from .interface import keep_to
from .lifetime import die_with_parent
from .rendezvous import Rendezvous, RendezvousError
from .report import Report
from .torchrun import DEVICE, Machines

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LOOPBACK = "127.0.0.1"
TRACEBACK_LINES = 12
# In the words of gloo, NCCL and the store where another rank has gone.
LOST_PEER = ("onnection", "Broken pipe", "Socket Timeout", "remote process exited", "Timed out waiting")
ROOT_CAUSE_SECONDS = 2.0  # that this machine has to find its own failure, where another one failed for the lack of it


def main() -> None:
    die_with_parent()
    options = parse()
    report = Report(options.folder)
    try:
        place, listener = open_group(options, report)
    except RendezvousError as error:
        report.write(error.explanation)
        raise SystemExit(str(error)) from error
    run_torchrun(options, place, listener, report)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="worker.launch.agent")
    parser.add_argument("--folder", type=Path, required=True, help="for the logs, and the reason of a failure")
    parser.add_argument("--ranks", type=int, required=True, help="on this machine")
    parser.add_argument("--machines", help="the setting, on the first of several machines")
    parser.add_argument("--silence", type=float, help="seconds after which a silent machine is lost")
    parser.add_argument("--node", type=int, default=0, help="this machine's place, the first's being 0")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--address", help="of this machine, on the others")
    parser.add_argument("--store", help="host:port of the first machine's store, on the others")
    return parser.parse_args()


def open_group(options: argparse.Namespace, report: Report) -> tuple[list[str], socket.socket | None]:
    """torchrun's arguments on how this machine takes part, and the socket of the store where that is the first.

    On the first of several machines, waits for the others. Raises RendezvousError.
    """
    if options.store:
        keep_to(options.address)
        return rendezvous(options.store, options.node, options.nodes), None
    if not options.machines:
        keep_to(LOOPBACK)
        listener = socket.create_server((LOOPBACK, 0))
        return rendezvous(endpoint_of(listener), 0, 1), listener
    others = Rendezvous(Machines.parse(options.machines.split(",")))
    keep_to(others.address)
    listener = socket.create_server((others.address, 0))
    start = {"ranks": options.ranks, "device": os.environ[DEVICE], "store": endpoint_of(listener)}
    others.gather(start, options.silence)

    def lost(reason: Explanation, of_another: bool) -> None:
        if of_another:
            time.sleep(ROOT_CAUSE_SECONDS)
        try:
            report.write(reason)
        finally:
            os._exit(1)  # the kernel ends the ranks with this process

    others.watch(lost)
    return rendezvous(endpoint_of(listener), 0, len(others.machines)), listener


def endpoint_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"


def rendezvous(endpoint: str, node: int, nodes: int) -> list[str]:
    return [f"--nnodes={nodes}", f"--node-rank={node}", "--rdzv-backend=static", f"--rdzv-endpoint={endpoint}"]


def run_torchrun(options: argparse.Namespace, place: list[str], listener: socket.socket | None, report: Report) -> None:
    """Runs the ranks of this machine to their end; their failure is this process's."""
    with collector_at_rest():
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.run import main as torchrun

    store = open_store(listener) if listener else None
    try:
        torchrun([
            f"--nproc-per-node={options.ranks}", "--max-restarts=0", *place,
            f"--log-dir={options.folder / 'torchrun'}", "-m", "worker.rank.main",
        ])  # fmt: skip
    except ChildFailedError as error:
        rank, reason, lost_peer = root_cause(error.failures)
        if lost_peer and options.machines:
            time.sleep(ROOT_CAUSE_SECONDS)  # another machine may have the cause, and then ends this process
        report.write(reason, rank, lost_peer)
        raise
    finally:
        del store


def open_store(listener: socket.socket) -> TCPStore:
    """The store at that address alone. There is one a port and process: torchrun, which asks for the same, gets it."""
    from torch.distributed import TCPStore

    host, port = listener.getsockname()
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach()
    )


def root_cause(failures: dict) -> tuple[int, Explanation, bool]:
    """The failure that brought the others down: the rank, the reason with its traceback, and whether it may follow
    from another rank's end for all that.

    failures: rank to torch's ProcessFailure, whose time is in whole seconds. What follows from another rank's end is
    the cause only if there is nothing before it: a lost connection, which may also abort a rank (SIGABRT). A rank that
    torchrun ended itself (SIGTERM) is the last to be it.
    """

    def lost_peer(failure: Any) -> bool:
        return failure.exitcode > 0 and any(text in str(failure.message) for text in LOST_PEER)

    def order(item: tuple) -> tuple:
        _, failure = item
        follows = 2 if lost_peer(failure) else int(failure.exitcode == -signal.SIGABRT)
        return (failure.exitcode == -signal.SIGTERM, follows, failure.timestamp)

    rank, failure = min(failures.items(), key=order)
    if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
        by = signal.Signals(-failure.exitcode)
        reason = Explanation(f"Rank {rank} (process {failure.pid}) was killed by {by.name}.")
        return rank, reason, by == signal.SIGABRT
    details = failure.error_file_data.get("message", {}) if isinstance(failure.error_file_data, dict) else {}
    details = details if isinstance(details, dict) else {}
    trace = details.get("extraInfo", {}).get("py_callstack", "").strip().splitlines()[-TRACEBACK_LINES:]
    message = details.get("message") or f"exit code {failure.exitcode}"
    reason = Explanation(f"Rank {rank} (process {failure.pid}) failed: {message}", details="\n".join(trace))
    return rank, reason, lost_peer(failure)


if __name__ == "__main__":
    main()
