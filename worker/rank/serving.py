"""Runs a rank: it joins the group, and runs requests until its process is ended.

Rank 0 reads frames from ComfyUI's job channel and passes each to the other ranks as bytes. Every rank then runs the
request, and they agree how it ended. An error in a request's content or a lack of memory is reported. Any other
exception ends the rank, and torchrun then ends the group.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from parallel_backend.device import warm_up
from parallel_backend.groups.mesh import start_distributed
from parallel_backend.groups.timeline import Timeline

from ..comfyui.model import import_comfyui
from ..comfyui.source import HostSource
from ..launch.imports import pause_garbage_collector
from ..launch.lifetime import die_with_parent
from ..launch.logs import open_log
from ..launch.torchrun import DEVICE, is_one_machine, read_gpus
from ..wire.job_channel import RankChannel
from ..wire.private_folder import EXPECTED, FOLDER, PROTOCOL, STORE
from ..wire.protocol import Header, check_version, decode
from ..wire.tensors import Tensors, UnsendableError
from .agreement import REFUSED, AgreementGroups, Outcome
from .channels.heartbeat import Board, Heartbeat
from .channels.heartbeat_link import HeartbeatLink, serve_links
from .channels.relay import FrameRelay
from .executor import Executor
from .job_groups import JobGroups
from .state import RankState


def serve(channel: RankChannel | None, executor: Executor, relay: FrameRelay) -> NoReturn:
    """Runs requests. The channel is None on ranks other than 0. Raises ConnectionClosed if ComfyUI has closed it."""
    while True:
        header, tensors = decode(relay.receive(channel and channel.connection))
        reply, results = executor.execute(header, tensors)
        if channel:
            answer(channel, {"id": header.get("id")}, reply, results, executor.state)


def answer(channel: RankChannel, start: Header, reply: Header, results: Tensors | None, state: RankState) -> None:
    """Sends a reply. If no frame can carry it, sends what is wrong with it instead. start: of both."""
    try:
        channel.send({**start, **reply}, results)
    except UnsendableError as error:
        channel.send({**start, **state.reply(), **Outcome(REFUSED, error.explanation).reply()})


def import_expected() -> None:
    """Imports what the first model will need, if it is known. Errors are left to the load."""
    try:
        if source := json.loads(os.environ.get(EXPECTED, "null")):
            with pause_garbage_collector():
                import_comfyui(HostSource.from_json(source))
    except Exception:
        logging.exception("ComfyUI could not be imported ahead")


def open_store() -> dist.Store:
    """Opens the store in which the ranks find each other: on one machine a file in the group's folder, which nobody
    else can open; else the one of torchrun's agent."""
    if is_one_machine():
        # torch opens it each time. By the descriptor, it does so after a cleaner of /tmp has removed the name, too.
        descriptor = os.open(Path(os.environ[FOLDER]) / STORE, os.O_RDWR | os.O_CREAT, 0o600)
        return dist.FileStore(f"/proc/self/fd/{descriptor}")
    world = int(os.environ["WORLD_SIZE"])
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=False)


@record
def run() -> None:
    log = open_log()
    die_with_parent()
    store = open_store()
    device = start_distributed(os.environ[DEVICE], read_gpus(os.environ), store)
    import_expected()  # before the heartbeat starts, since importing may delay it
    # What takes seconds once is done here, while ComfyUI runs its text encoder.
    warm_up(device)
    rank, world = dist.get_rank(), dist.get_world_size()
    timeline = Timeline(device)
    groups = JobGroups(device, timeline)
    state = RankState(device)

    cutter = ThreadPoolExecutor(1, "cut")
    cutter.submit(int).result()  # starts its thread now: later, there may be no memory for it

    def cut(job: int) -> None:
        """Cuts a job in another thread: to abort groups takes time, and the heartbeat has to go on."""
        cutter.submit(groups.cut, job).add_done_callback(Future.result)  # which logs an error

    relay = FrameRelay(device)
    board = Board(world)
    job: Future[socket.socket] = Future()

    def hear(message: Header) -> Header:
        """Hears on rank 0 a rank's beat, or ComfyUI's question, which comes once the job channel is there."""
        return board.hear(message) if "rank" in message else executor.answer(message)

    if rank == 0:
        check_version(int(os.environ.get(PROTOCOL, 0)))
        serve_links(hear, job, store)
    dist.barrier(relay.group)  # the server listens
    ask = HeartbeatLink(store).ask if rank else board.hear
    heartbeat = Heartbeat(rank, board, ask, state.memory, lambda: timeline.moves, cut, log.rotate)
    groups.connect_ahead(relay.group)
    heartbeat.start()

    channel = RankChannel(job.result(), relay.memory) if rank == 0 else None
    executor = Executor(state, AgreementGroups(relay.group), groups, heartbeat, channel)
    if channel:
        channel.send({"has_memory": relay.memory is not None})
    serve(channel, executor, relay)
