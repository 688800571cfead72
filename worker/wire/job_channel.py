"""The job channel between ComfyUI and rank 0: small frames go through its socket, large ones through shared memory.

ComfyUI connects to rank 0's socket, asks for the channel, and waits for rank 0's first frame, {"has_memory"}. ComfyUI
creates the memory, and the ranks' environment says where it is; rank 0 opens it, unless the system cannot. The socket
then carries only the prefix of a large frame, see `protocol.py`. Slots are used in turn.
If a GPU is involved they are pinned, so a latent is copied once on its way from the device, and once on its way to the
other.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from ..engine import device as devices
from ..engine import shared_memory
from .handshake import connect_to
from .json_object import to_bytes
from .protocol import Header, Piece, decode, encode, is_large, receive_frame, send_pieces
from .tensors import Tensors
from .tree import PREDICTION

Address = shared_memory.Address
SharedMemory = shared_memory.SharedMemory
JOB = {"op": "job"}  # asks rank 0 for the channel, once in its life
BUFFER = socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20  # holds a whole latent, where the kernel allows it
SLOTS = 2
MOST_PINNED = 256 << 20  # bytes of a slot; a VAE's weights come once, and pinning them takes longer than the copy
COUNT_BYTES = 8
FRAMES = "PARALLELDIT_FRAMES"  # the variable that says where the memory is, see `FrameMemory.address`
LATENTS = (PREDICTION, "latents", "denoised")  # what their names begin with
WAIT_SECONDS = 0.0005


class Slot:
    """Memory for one frame, pinned for a device if it can be."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        self.pinned: torch.Tensor | None = None

    def view(self, length: int, device: torch.device | None = None) -> memoryview:
        """Returns the first `length` bytes. device: of the tensors that are copied to or from them."""
        before = self.memory.map
        view, mapped = self.memory.view(length), self.memory.map
        if mapped is not before:
            self.pinned = None
        if device and mapped and self.pinned is None and len(mapped) <= MOST_PINNED:
            self.pinned = torch.frombuffer(mapped, dtype=torch.uint8)
            devices.pin_now(self.pinned, device)
        return view


class FrameMemory:
    """ComfyUI's memory, which the ranks of its machine map: slots for requests, and for replies. taken: has one number,
    how many replies ComfyUI has taken out of their slots."""

    def __init__(self, parts: Sequence[SharedMemory]) -> None:
        *slots, self.flow = parts
        self.requests, self.replies = list(map(Slot, slots[:SLOTS])), list(map(Slot, slots[SLOTS:]))
        self.taken = self.flow.view(COUNT_BYTES).cast("Q")
        self.address = ",".join(map(str, (self.flow.address.pid, *(part.address.descriptor for part in parts))))

    @classmethod
    def create(cls) -> FrameMemory:
        """Raises OSError if no descriptors are left."""
        return cls([SharedMemory.create(name) for name in (*SLOTS * ["requests"], *SLOTS * ["replies"], "flow")])

    @classmethod
    def open(cls, writes: bool) -> FrameMemory | None:
        """Opens the memory in a rank; None if this machine has none that it may open. writes: as rank 0 does."""
        try:
            pid, *descriptors = map(int, os.environ[FRAMES].split(","))
            return cls([SharedMemory.open(Address(pid, each), writes) for each in descriptors])
        except (KeyError, OSError):
            return None


def ask_for_channel(path: Path, token: str) -> socket.socket:
    """Connects ComfyUI's end to rank 0's socket at this path. Raises BROKEN_LINK while rank 0 does not listen."""
    with connect_to(path, token) as link:
        link.send_bytes(to_bytes(JOB))
        return socket.socket(fileno=os.dup(link.fileno()))


class HostChannel:
    """ComfyUI's end. It sends a request only when the one before has its reply. sent: requests. taken: replies that
    came through memory. copied: ends the copies of the last of them to a device."""

    def __init__(self, connection: socket.socket, memory: FrameMemory | None) -> None:
        connection.setsockopt(*BUFFER)
        self.connection = connection
        self.memory = memory
        self.sent = self.taken = 0
        self.copied: torch.Event | None = None

    def send(self, frame: Sequence[Piece]) -> None:
        """Sends a frame of `encode`. Its slot was that of the last request but one, which every rank is done with.
        Raises ConnectionError."""
        slot = self.memory.requests[(self.sent + 1) % SLOTS] if self.memory else None
        send_pieces(self.connection, frame, slot and slot.view)
        self.sent += 1

    def receive(self, device: torch.device | None = None) -> tuple[Header, Tensors]:
        """Receives a frame. device: to which latents are copied if they come through memory. Raises ConnectionClosed
        and ProtocolError."""
        if self.copied:  # it has had a step's time
            self.copied.synchronize()
        slot = None
        if self.memory:
            self.memory.taken[0] = self.taken  # the slot may be overwritten
            slot = partial(self.memory.replies[self.taken % SLOTS].view, device=device)
        frame = receive_frame(self.connection, in_memory=slot)
        if not isinstance(frame, memoryview):  # it came through the socket
            return decode(frame)
        if device is None or not devices.is_accelerator(device):
            header, tensors = decode(bytearray(frame))  # malloc keeps memory for it, and torch would not
        else:
            header, views = decode(frame)
            to = {name: device for name in views if name.startswith(LATENTS)}
            tensors = {name: view.to(to.get(name), copy=True, non_blocking=True) for name, view in views.items()}
            self.copied = devices.new_event(device)
            self.copied.record()
        self.taken += 1
        return header, tensors

    def close(self) -> None:
        if self.copied:
            self.copied.synchronize()
        self.connection.close()


class RankChannel:
    """Rank 0's end, for replies and events. Requests come through the relay."""

    def __init__(self, connection: socket.socket, memory: FrameMemory | None) -> None:
        connection.setsockopt(*BUFFER)
        self.connection = connection
        self.memory = memory
        self.sent = 0

    def send(self, header: Header, tensors: Tensors | None = None) -> None:
        """Sends a frame. Waits while ComfyUI has not read the large ones before. Raises ConnectionError and
        UnsendableError."""
        frame = encode(header, tensors)
        if self.memory is None or not is_large(frame):
            send_pieces(self.connection, frame)
            return
        while self.sent - self.memory.taken[0] >= SLOTS:
            time.sleep(WAIT_SECONDS)
        send_pieces(self.connection, frame, self.memory.replies[self.sent % SLOTS].view)
        self.sent += 1
