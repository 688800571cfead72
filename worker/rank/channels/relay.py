"""Passes ComfyUI's frames to the ranks: rank 0 takes them from the job channel, and the others read shared memory.

All ranks get the same requests in the same order. Otherwise their collectives would deadlock.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from parallel_backend.device import CPU
from parallel_backend.groups.mesh import new_group
from parallel_backend.weights.shared_memory import IS_SHAREABLE, NOWHERE, Address, SharedMemory

from ...errors import ConnectionClosed
from ...wire.job_channel import SLOTS, Slot
from ...wire.protocol import encode, receive_frame
from ...wire.tensors import Buffer, WritableBuffer

FOREVER = timedelta(days=3650)


class FrameRelay:
    """Passes rank 0's frames to every rank, over a process group of its own, which may be idle for any time. On one
    Linux machine, a frame is in memory that all ranks map, and ComfyUI, too. Elsewhere its bytes are broadcast.

    device: to which this rank copies what a frame brings. offered: rank 0's memory, for ComfyUI to write to.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.group = new_group(torch.device(CPU), timeout=FOREVER)
        is_first = dist.get_rank() == 0
        self.offered = [SharedMemory.create("frames") for _ in range(SLOTS)] if is_first and IS_SHAREABLE else []
        mapped = self._share_memory()
        self.is_mapped = mapped is not None  # whether every rank maps it
        self.slots = [Slot(each) for each in mapped or self.offered]
        self.count = 0

    def receive(self, channel: socket.socket | None) -> Buffer:
        """Returns the next frame on every rank. Rank 0 passes the job channel, the others None. A frame is valid until
        the second frame after it. Once ComfyUI has closed the channel, the frame's operation is "stop"."""
        self.count += 1
        frame: WritableBuffer = bytearray()
        if channel:
            try:
                frame = receive_frame(channel, allocate=self._allocate, in_memory=self._slot if self.slots else None)
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
            dist.broadcast(torch.frombuffer(frame, dtype=torch.uint8), 0, group=self.group)
        return frame

    def _allocate(self, length: int) -> WritableBuffer:
        return self._slot(length) if self.slots else bytearray(length)

    def _slot(self, length: int) -> memoryview:
        return self.slots[self.count % SLOTS].view(length, self.device)

    def _share_memory(self) -> list[SharedMemory] | None:
        """Returns rank 0's memory, which every rank maps. Returns None if one of them can't."""
        world, one_machine = os.environ["WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"]
        if not IS_SHAREABLE or world != one_machine or world == "1":
            return None
        slots = self.offered
        addresses = torch.tensor([slot.address for slot in slots] or [NOWHERE] * SLOTS)
        dist.broadcast(addresses, 0, group=self.group)
        opened = torch.tensor([1])
        try:
            slots = slots or [SharedMemory.open(Address(*address)) for address in addresses.tolist()]
        except OSError:
            opened.zero_()
        dist.all_reduce(opened, dist.ReduceOp.MIN, group=self.group)
        return slots if int(opened) else None
