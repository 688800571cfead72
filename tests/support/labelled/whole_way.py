"""A forward's whole way on labelled tensors: from ComfyUI's process through the job channel to the ranks, and back.

The product's own code does all of it: the client, both ends of the channel, its memory, the relay, and a rank's
executor. Rank 0's process is ComfyUI's, too, so the card is one that both share. Nothing is small: each frame goes
through memory, as those of large pictures do.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from parallel_backend.groups.calls import Call
from parallel_backend.groups.timeline import Timeline
from parallel_backend.parallel_model import ParallelModel, moved
from parallel_backend.weights.parking import Parking
from worker.comfyui.source import HostSource
from worker.host.client import WorkerGroup
from worker.host.known_state import KnownState
from worker.host.session import Session
from worker.inside.code_files import CodeFiles
from worker.inside.decoder import Decoder
from worker.launch.torchrun import COMFYUI_THREADS
from worker.rank.agreement import AgreementGroups
from worker.rank.channels.heartbeat import Board, Heartbeat
from worker.rank.channels.relay import FrameRelay
from worker.rank.executor import Executor
from worker.rank.job_groups import JobGroups
from worker.rank.model.added_networks import AddedNetworks
from worker.rank.model.host_model import HostModel
from worker.rank.serving import answer
from worker.rank.state import RankState
from worker.settings import Settings
from worker.wire import protocol
from worker.wire.job_channel import FRAMES, FrameMemory, HostChannel, RankChannel
from worker.wire.private_folder import TOKEN as TOKEN_VARIABLE
from worker.wire.protocol import decode
from worker.wire.tensors import UnsendableError
from worker.wire.tree import pack

from .tensors import GPU
from .watch import Watch

TOKEN = "a" * 64
OUTSIDE = 1200 << 20  # bytes of the card that contexts take


class WholeWay:
    """Of one forward after the other. All ranks make it together.

    waits: how often ComfyUI's process has waited for its device, by kind and place; the ranks' waits are in `watch`.
    """

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault(COMFYUI_THREADS, "1")
        os.environ[TOKEN_VARIABLE] = TOKEN
        self.waits: Counter[str] = Counter()
        self.timeline = Timeline(GPU)
        memory = FrameMemory.create()
        given = [memory.address]
        dist.broadcast_object_list(given)
        os.environ[FRAMES] = given[0]
        self.relay = FrameRelay(GPU)
        rank, world = dist.get_rank(), dist.get_world_size()
        card, free = SimpleNamespace(total_memory=8 << 30), (8 << 30) - OUTSIDE
        told = {"get_device_properties": lambda _device: card, "mem_get_info": lambda _device: (free, 8 << 30)}
        patch.multiple(torch.cuda, **told).start()  # the state asks after each request, too
        self.executor = make_executor(GPU, self.relay.group, self.timeline)
        assert [each["outside"] for each in self.executor.status()["devices"]] == [OUTSIDE] * world
        if not rank:
            ours, self.theirs = socket.socketpair()
            assert self.relay.memory
            self.channel = RankChannel(self.theirs, self.relay.memory)
            self.group = WorkerGroup("cpu", folder)
            self.session = session_on(HostChannel(ours, memory))
            self.group.session = self.session

    def hold(self, module: ParallelModel) -> None:
        """Has the ranks hold a model, which has its weights already."""
        state = self.executor.state
        state.conditions.clear()
        self.waits.clear()
        state.model = held(module)
        if not dist.get_rank():
            self.session.known = KnownState()

    def call(self, watch: Watch, module: ParallelModel, calls: Sequence[Call]) -> list[Any] | None:
        """What ComfyUI's process gets of calls, which it has on its device; None on ranks other than 0. Calls with a
        node's functions, which nobody has described here, begin at the engine."""
        state = self.executor.state
        if not all(map(is_sendable, calls)):
            self.waits.clear()
            with self.timeline.request("forward"):
                return module.run_calls(calls)
        if state.model is None or state.model.parallel is not module:
            self.hold(module)
        if dist.get_rank():
            self.serve(watch)
            return None
        given: Any = [moved(tuple(call), GPU) for call in calls]
        watch.is_busy, of_rank = False, watch.outside
        watch.outside = self.waits
        try:
            with patch.object(protocol, "SOCKET_BYTES", 0):
                return self.group.call(given, self.once_sent(lambda: self.serve(watch, of_rank)))
        finally:
            watch.outside = of_rank

    def once_sent(self, action: Callable[[], None]) -> Callable[[], None]:
        """Calls an action as soon as a request has been sent."""
        before = self.session.job_channel.sent

        def check() -> None:
            nonlocal before
            if self.session.job_channel.sent != before:
                before = self.session.job_channel.sent
                action()

        return check

    def serve(self, watch: Watch, waits: Counter[str] | None = None) -> None:
        """As a rank's loop does with one frame. waits: of the rank."""
        before, watch.outside = watch.outside, watch.outside if waits is None else waits
        with patch.object(watch, "knows_pinned", True):
            self.answer_one()
        watch.outside = before

    def answer_one(self) -> None:
        header, tensors = decode(self.relay.receive(None if dist.get_rank() else self.theirs))
        reply, results = self.executor.execute(header, tensors)
        if not dist.get_rank():
            answer(self.channel, {"id": header.get("id")}, reply, results, self.executor.state)


def make_executor(device: torch.device, group: dist.ProcessGroup, timeline: Timeline) -> Executor:
    """A rank's. group: of all ranks, by which they agree."""
    board = Board(dist.get_world_size())
    heartbeat = Heartbeat(dist.get_rank(), board, board.hear, dict, int, lambda _job: None)
    channel: Any = None if dist.get_rank() else SimpleNamespace(send=lambda *_: None)
    return Executor(RankState(device), AgreementGroups(group), JobGroups(device, timeline), heartbeat, channel)


def is_sendable(call: Call) -> bool:
    try:
        pack(list(call), "", {})
    except UnsendableError:
        return False
    return True


def session_on(channel: HostChannel) -> Session:
    """A session that nobody starts: its processes are this one."""
    session = Session.__new__(Session)
    vars(session).update(
        job_channel=channel, known=KnownState(), given_up=False, last_id=0,
        operation=None, end_reason=None, process=SimpleNamespace(exited=threading.Event()), ranks=dist.get_world_size(),
        settings=Settings(), pids=[os.getpid()],
    )  # fmt: skip
    return session


def held(module: ParallelModel) -> HostModel:
    """A model as a rank holds it, without a file, and without ComfyUI's patcher, whose estimates are left out."""
    model: Any = SimpleNamespace(diffusion_model=module.model)
    patcher: Any = SimpleNamespace(memory_required=lambda _shape: 0, model_size=int, loaded_size=int)
    device = module.mesh.device
    decoder = Decoder(CodeFiles(os.environ["COMFYUI_PATH"], ()), module.model, lambda: device)
    networks = AddedNetworks(model, module)
    module.complete = networks.complete
    source = HostSource(os.environ["COMFYUI_PATH"], (), "", "", "float32", "")
    parking = Parking(module.model, device)
    return HostModel(source, patcher, module, parking, decoder, networks, {}, {}, working_bytes=sys.maxsize)
