"""Passes ComfyUI's frames to the ranks: rank 0 takes them from the job channel, and the others read shared memory.

All ranks get the same requests in the same order. Otherwise their collectives would deadlock.

A process group authenticates nobody. So a rank reads frames from memory that has the session's token, or checks a MAC
that is made with the token, before it decodes a frame.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from parallel_backend.device import CPU
from parallel_backend.groups.mesh import new_group
from parallel_backend.weights.shared_memory import IS_SHAREABLE, NOWHERE

from ...errors import ConnectionClosed
from ...launch.torchrun import is_one_machine
from ...wire.job_channel import SLOTS, FrameMemory
from ...wire.private_folder import TOKEN
from ...wire.protocol import ProtocolError, encode, receive_frame
from ...wire.tensors import Buffer, WritableBuffer

FOREVER = timedelta(days=3650)


class FrameRelay:
    """Passes rank 0's frames to every rank, over a process group of its own, which may be idle for any time. On one
    Linux machine, a frame is in memory that all ranks map, and ComfyUI, too. Elsewhere its bytes are broadcast.

    device: to which this rank copies what a frame brings. memory: for frames; on rank 0 also for ComfyUI's and its own.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.group = new_group(torch.device(CPU), timeout=FOREVER)
        self.token = os.environ[TOKEN]
        self.memory = FrameMemory.create(self.token) if dist.get_rank() == 0 and IS_SHAREABLE else None
        self.is_mapped = self._map_memory()
        self.count = 0

    def receive(self, channel: socket.socket | None) -> Buffer:
        """Returns the next frame on every rank. Rank 0 passes the job channel, the others None. A frame is valid until
        the second frame after it. Once ComfyUI has closed the channel, the frame's operation is "stop".

        Raises ProtocolError on a rank for a frame that does not come from rank 0."""
        self.count += 1
        frame: WritableBuffer = bytearray()
        if channel:
            try:
                frame = receive_frame(channel, allocate=self._allocate, in_memory=self._slot if self.memory else None)
            except ConnectionClosed:
                (stop,) = encode({"op": "stop"})
                frame = self._allocate(len(stop))
                frame[:] = bytes(stop)
        if dist.get_world_size() == 1:
            return frame
        # This also tells rank 0 that every rank is done with the last frame, so its memory may be overwritten.
        length = torch.tensor([len(frame)])
        dist.all_reduce(length, dist.ReduceOp.MAX, group=self.group)
        if channel is None:
            frame = self._allocate(int(length))
        if not self.is_mapped:
            self._broadcast(frame)
        return frame

    def _broadcast(self, frame: WritableBuffer) -> None:
        """Sends rank 0's frame to the others, with its MAC. Raises ProtocolError if they do not belong together."""
        dist.broadcast(torch.frombuffer(frame, dtype=torch.uint8), 0, group=self.group)
        code = hmac.new(self.token.encode(), self.count.to_bytes(8, "big"), hashlib.sha256)
        code.update(frame)
        sent = torch.frombuffer(bytearray(code.digest()), dtype=torch.uint8)
        dist.broadcast(sent, 0, group=self.group)
        if not hmac.compare_digest(bytes(sent.tolist()), code.digest()):
            raise ProtocolError("A frame does not come from rank 0 of this group: its MAC is wrong.")

    def _allocate(self, length: int) -> WritableBuffer:
        return self._slot(length) if self.memory else bytearray(length)

    def _slot(self, length: int) -> memoryview:
        slots = self.memory.requests if self.memory else []
        return slots[self.count % SLOTS].view(length, self.device)

    def _map_memory(self) -> bool:
        """Maps rank 0's memory on the other ranks of its machine. Returns whether every rank maps it."""
        if not IS_SHAREABLE or not is_one_machine() or dist.get_world_size() == 1:
            return False
        address = torch.tensor(self.memory.flow.address if self.memory else NOWHERE)
        dist.broadcast(address, 0, group=self.group)
        opened = torch.tensor([1])
        try:
            self.memory = self.memory or FrameMemory.open(address.tolist(), self.token)
        except OSError:
            opened.zero_()
        dist.all_reduce(opened, dist.ReduceOp.MIN, group=self.group)
        if not opened and dist.get_rank():
            self.memory = None
        return bool(opened)
