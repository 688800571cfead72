"""`python -m worker.launch.agent` runs this machine's part of a worker group: a torchrun that dies with its parent.

When a rank fails, the agent writes the root cause into the folder. The node's error quotes it.

On one machine the agent has a store within its process, and the ranks have one in the group's folder: nobody else can
reach them. Several machines have torchrun's static rendezvous. The other one, called c10d, would keep its state in the
store as a pickle: anyone who reaches the port could replace it. It would also order the machines by address. The static
one unpickles nothing, and gives rank 0, which talks to ComfyUI, to the first machine. The agent opens the store itself,
because torchrun's would listen on every network, and not only on the one that the machines share.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ..errors import Explanation, WorkerGroupError
from ..wire.private_folder import TOKEN
from .forks import ForkedRank, fork_ranks
from .imports import pause_garbage_collector
from .lifetime import die_with_parent
from .process import Failure, signal_name
from .rendezvous import Rendezvous
from .torchrun import DEVICE, WITHIN, Machines

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LOOPBACK = "127.0.0.1"
RANK = "worker.rank.main"  # the module that a rank runs
TRACEBACK_LINES = 12
# What gloo, NCCL and the store say when another rank has gone.
LOST_PEER = ("onnection", "Broken pipe", "Socket Timeout", "remote process exited", "Timed out waiting")
ROOT_CAUSE_SECONDS = 2.0  # time for this machine to find its own failure, if another machine failed because of it


def main() -> None:
    die_with_parent()
    options = parse()
    ranks = fork_ranks(options.ranks, RANK)
    try:
        arguments, listener = open_group(options)
        run_torchrun(options, arguments, listener, ranks)
    except WorkerGroupError as error:
        Failure(error.explanation).write(options.folder)
        raise SystemExit(str(error)) from error
    finally:
        for rank in ranks:  # one that still waits would be waited for
            rank.process.kill()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="worker.launch.agent")
    parser.add_argument("--folder", type=Path, required=True, help="for the logs, and the reason of a failure")
    parser.add_argument("--ranks", type=int, required=True, help="on this machine")
    parser.add_argument("--machines", help="the setting, on the first of several machines")
    parser.add_argument("--silence", type=float, help="seconds after which a silent machine is lost")
    parser.add_argument("--node", type=int, default=0, help="this machine's node rank, the first's being 0")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--address", help="of this machine, on the others")
    parser.add_argument("--store", help="host:port of the first machine's store, on the others")
    return parser.parse_args()


def open_group(options: argparse.Namespace) -> tuple[list[str], socket.socket | None]:
    """Returns torchrun's rendezvous arguments, and on the first of several machines the socket of the store.

    The first of several machines waits here for the others. Raises WorkerGroupError.
    """
    if options.store:
        use_interface_of(options.address)
        return rendezvous(options.store, options.node, options.nodes), None
    if not options.machines:
        use_interface_of(LOOPBACK)
        return [f"--rdzv-backend={WITHIN}", "--rdzv-endpoint=none"], None
    others = Rendezvous(Machines.parse(options.machines.split(",")))
    use_interface_of(others.address)
    listener = socket.create_server((others.address, 0))
    endpoint = ":".join(map(str, listener.getsockname()))
    start = {"ranks": options.ranks, "device": os.environ[DEVICE], "store": endpoint, "token": os.environ[TOKEN]}
    others.gather(start, options.silence)

    def lost(reason: Explanation, of_another: bool) -> None:
        if of_another:
            time.sleep(ROOT_CAUSE_SECONDS)
        try:
            Failure(reason).write(options.folder)
        finally:
            os._exit(1)  # the kernel ends the ranks with this process

    others.watch(lost)
    return rendezvous(endpoint, 0, len(others.machines)), listener


def use_interface_of(address: str) -> None:
    """Makes the ranks that this process starts use the interface with this IPv4 address, if there is one. An operator's
    own choice wins.

    By default gloo resolves the machine's name: on Debian that is 127.0.1.1, which no other machine reaches.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if address in (each.address for each in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # "=": exactly this name, not a prefix


def rendezvous(endpoint: str, node: int, nodes: int) -> list[str]:
    return [f"--nnodes={nodes}", f"--node-rank={node}", "--rdzv-backend=static", f"--rdzv-endpoint={endpoint}"]


def run_torchrun(
    options: argparse.Namespace, arguments: list[str], listener: socket.socket | None, ranks: list[ForkedRank]
) -> None:
    """Runs the ranks of this machine until they end. Raises if one of them fails. ranks: those already forked."""
    with pause_garbage_collector():
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.run import main as torchrun

        from ..compat import torchrun_starts_by
        from .within import register

    def start(*, env: Mapping[str, str], local_rank_id: int, **_: object) -> ForkedRank:
        return ranks[local_rank_id].start({**os.environ, **env})

    register()
    _store = open_store(listener) if listener else None  # it lives as long as the ranks
    try:
        with torchrun_starts_by(start) if ranks else contextlib.nullcontext():
            torchrun([
                f"--nproc-per-node={options.ranks}", "--max-restarts=0", *arguments,
                f"--log-dir={options.folder / 'torchrun'}", "-m", RANK,
            ])  # fmt: skip
    except ChildFailedError as error:
        failure = find_root_cause(error.failures)
        if failure.of_another and options.machines:
            time.sleep(ROOT_CAUSE_SECONDS)  # another machine may have the cause, and then ends this process
        failure.write(options.folder)
        raise


def open_store(listener: socket.socket) -> TCPStore:
    """Opens the store at this address only. torchrun asks for a store at the same port, and gets this one."""
    from torch.distributed import TCPStore

    host, port = listener.getsockname()
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach()
    )


def find_root_cause(failures: dict) -> Failure:
    """Returns the failure that brought the other ranks down, with its traceback, and whether it may still be the end of
    another rank.

    failures: rank to torch's ProcessFailure, whose time is in whole seconds. A lost connection, which may also abort a
    rank (SIGABRT), is a consequence: it counts as the cause only if nothing else failed. A rank that torchrun itself
    ended (SIGTERM) comes last.
    """

    def lost_peer(failure: Any) -> bool:
        return failure.exitcode > 0 and any(text in str(failure.message) for text in LOST_PEER)

    def order(item: tuple) -> tuple:
        _, failure = item
        follows = 2 if lost_peer(failure) else int(failure.exitcode == -signal.SIGABRT)
        return (failure.exitcode == -signal.SIGTERM, follows, failure.timestamp)

    rank, failure = min(failures.items(), key=order)
    if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
        reason = Explanation(f"Rank {rank} (process {failure.pid}) was killed by {signal_name(-failure.exitcode)}.")
        return Failure(reason, rank, failure.exitcode == -signal.SIGABRT)
    details = failure.error_file_data.get("message", {}) if isinstance(failure.error_file_data, dict) else {}
    details = details if isinstance(details, dict) else {}
    trace = details.get("extraInfo", {}).get("py_callstack", "").strip().splitlines()[-TRACEBACK_LINES:]
    message = details.get("message") or f"exit code {failure.exitcode}"
    reason = Explanation(f"Rank {rank} (process {failure.pid}) failed: {message}", details="\n".join(trace))
    return Failure(reason, rank, lost_peer(failure))


if __name__ == "__main__":
    main()
