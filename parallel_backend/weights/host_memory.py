"""One copy of a model's weights in a machine's RAM. All ranks with the same weights map it, and each pins it.

Parked weights are kept in it, and so are the blocks of weights=host.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import zlib

import torch
import torch.distributed as dist

from ..device import Pinner
from ..errors import RequestError, format_bytes
from ..groups.collectives import gather_numbers
from ..groups.mesh_layout import shard_range
from .fitting import OF_HOST
from .free_ram import available_ram_bytes
from .shared_memory import IS_SHAREABLE, NOWHERE, Address, SharedMemory
from .tensors import ALIGNMENT


class HostMemory:
    """RAM for one copy of weights, at most `size` bytes. A page takes no RAM until something is written to it.

    shared: memory that several ranks map; None for memory of this rank alone.
    writer: this rank's index among the `writers`. Each of them writes its part of the copy.
    copies: how many such copies this machine will hold.
    pinner: pins what has been allocated.
    """

    def __init__(self, size: int, shared: SharedMemory | None = None) -> None:
        self.size, self.shared = size, shared
        self.writer, self.writers, self.copies = 0, 1, 1
        self.mapped: torch.Tensor | None = None
        self.pinner: Pinner | None = None

    def check_room(self, size: int, purpose: str, advice: str) -> None:
        """Raises RequestError if the machine has too little free RAM for `size` bytes per copy. Otherwise Linux would
        kill a process."""
        available = int(OF_HOST * available_ram_bytes())
        if size * self.copies > available:
            raise RequestError(
                f"{purpose} takes {format_bytes(size)} of RAM, {self.copies} times on this machine, and "
                f"{format_bytes(available)} are free.",
                advice,
            )

    def allocate(self, start: int, size: int, device: torch.device) -> torch.Tensor:
        """Returns these bytes, and begins to pin them for as long as the tensor lives: `pinner` waits for it. start: at
        a page."""
        if self.mapped is None:
            self.mapped = self._map()
        self.pinner = self.pinner or Pinner(device)
        found = self.mapped[start : start + size]
        self.pinner.add(found)
        return found

    def _map(self) -> torch.Tensor:
        """Returns all bytes. They begin at a page."""
        if self.shared and self.size:
            return torch.frombuffer(self.shared.view(self.size), dtype=torch.uint8)
        # Torch's own memory would be filled at once where a user asks for deterministic algorithms.
        own = mmap.mmap(-1, self.size or 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(own, dtype=torch.uint8)[: self.size]

    def own_part(self, size: int) -> tuple[int, int]:
        """Returns where this rank's part starts and stops. Other ranks may read it once all ranks agree that they have
        written."""
        own = shard_range(-(-size // ALIGNMENT), self.writer, self.writers)
        return min(size, own.start * ALIGNMENT), min(size, own.stop * ALIGNMENT)


def agree_on_memory(
    what: object, size: int, group: dist.ProcessGroup | None, last: HostMemory | None = None
) -> HostMemory:
    """Finds this machine's ranks with the same weights, and gives them one memory.

    All ranks call this, and nothing in it raises on one rank alone. A rank that cannot share gets its own memory.

    what: describes a rank's weights. Its `repr` is equal on ranks with the same weights.
    group: all ranks with weights, for tensors on the CPU.
    last: the memory of the last time. It is used again if its size fits and all of these ranks have it.
    """
    machine = int(os.environ.get("GROUP_RANK", "0"))  # torchrun's number of this machine
    own = (machine, zlib.crc32(repr(what).encode()))
    last = last if last and last.size == size else None
    known = last.shared if last else None
    address = known.address if known else NOWHERE
    found = gather_numbers((*own, *address), group)
    peers = [rank for rank, each in enumerate(found) if each[:2] == own]
    copies = len({each[1] for each in found if each[0] == machine})
    writer, shared = peers.index(dist.get_rank(group)), None
    if known and all(each[2:] == address for each in map(found.__getitem__, peers)):
        shared = known
    elif writer == 0 and len(peers) > 1:
        shared = create_shared(size)
    address = Address(*gather_numbers(shared.address if shared else NOWHERE, group)[peers[0]])
    if shared is None and address != NOWHERE:
        with contextlib.suppress(OSError):
            shared = SharedMemory.open(address)
    have = gather_numbers((int(shared is not None),), group)
    writers = len(peers)
    if len(peers) > 1 and not all(have[peer] == (1,) for peer in peers):
        shared, writer, writers, copies = None, 0, 1, sum(each[0] == machine for each in found)
    memory = last if last and last.shared is shared else HostMemory(size, shared)
    memory.writer, memory.writers, memory.copies = writer, writers, copies
    return memory


def create_shared(size: int) -> SharedMemory | None:
    """Creates memory of this size for other ranks to open. Returns None if that is not possible."""
    if not IS_SHAREABLE or not size:
        return None
    try:
        memory = SharedMemory.create("weights")
        memory.view(size)
    except (OSError, ValueError):
        return None
    return memory
