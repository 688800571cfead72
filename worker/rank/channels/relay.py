"""Passes ComfyUI's frames to the ranks: rank 0 takes them from the job channel, and the others read shared memory.

All ranks get the same requests in the same order. Otherwise their collectives would deadlock.

A process group authenticates nobody. So a rank reads frames from the memory that its environment names, or checks a MAC
that is made with the session's token, before it decodes a frame.
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
from parallel_backend.groups.collectives import gather_numbers
from parallel_backend.groups.mesh import new_group

from ...wire.job_channel import SLOTS, FrameMemory
from ...wire.private_folder import TOKEN
from ...wire.protocol import ProtocolError, receive_frame
from ...wire.tensors import Buffer, WritableBuffer

FOREVER = timedelta(days=3650)


class FrameRelay:
    """Passes rank 0's frames to every rank, over a process group of its own, which may be idle for any time. On one
    Linux machine, a frame is in memory that all ranks map, and ComfyUI, too. Elsewhere its bytes are broadcast.

    device: to which this rank copies what a frame brings. is_mapped: whether all ranks map the memory. memory: for
    frames; where ranks are on several machines, rank 0 alone has it, for ComfyUI's.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.group = new_group(torch.device(CPU), timeout=FOREVER)
        self.memory = FrameMemory.open(writes=dist.get_rank() == 0)
        self.is_mapped = all(count for (count,) in gather_numbers((int(self.memory is not None),), self.group))
        if not self.is_mapped and dist.get_rank():
            self.memory = None
        self.count = 0

    def receive(self, channel: socket.socket | None) -> Buffer:
        """Returns the next frame on every rank. Rank 0 passes the job channel, the others None. A frame is valid until
        the second frame after it. Raises ConnectionClosed once ComfyUI has closed the channel, and ProtocolError on a
        rank for a frame that does not come from rank 0."""
        self.count += 1
        frame: WritableBuffer = bytearray()
        if channel:
            frame = receive_frame(channel, allocate=self._allocate, in_memory=self._allocate if self.memory else None)
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
        code = hmac.new(os.environ[TOKEN].encode(), self.count.to_bytes(8, "big"), hashlib.sha256)
        code.update(frame)
        sent = torch.frombuffer(bytearray(code.digest()), dtype=torch.uint8)
        dist.broadcast(sent, 0, group=self.group)
        if not hmac.compare_digest(bytes(sent.tolist()), code.digest()):
            raise ProtocolError("A frame does not come from rank 0 of this group: its MAC is wrong.")

    def _allocate(self, length: int) -> WritableBuffer:
        if self.memory is None:
            return bytearray(length)
        return self.memory.requests[self.count % SLOTS].view(length, self.device)
