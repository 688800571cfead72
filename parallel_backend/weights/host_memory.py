"""One copy of weights in a machine's RAM. The ranks that have the same weights all map it, and each pins it.

Parked weights wait in it, and so do the blocks of weights=host.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

import torch
import torch.distributed as dist

from ..device import pin
from ..errors import RequestError
from ..groups.collectives import gather_numbers
from ..groups.mesh_layout import shard_range
from .fitting import GB, OF_HOST
from .shared_memory import IS_SHAREABLE, NOWHERE, Address, SharedMemory
from .tensors import ALIGNMENT


class HostMemory:
    """RAM for one copy of weights, of `size` bytes at most. A page that nothing is written to takes no RAM.

    shared: the memory that several ranks map; None for memory of this rank's own. place: this rank's among the
    `writers` that share the copy, each of which writes its part. copies: how many such copies this machine will have.
    """

    def __init__(
        self, size: int, shared: SharedMemory | None = None, place: int = 0, writers: int = 1, copies: int = 1
    ) -> None:
        self.size, self.shared = size, shared
        self.place, self.writers, self.copies = place, writers, copies
        self.mapped: torch.Tensor | None = None

    def check_room(self, size: int, purpose: str, advice: str) -> None:
        """Raises RequestError if the machine's free RAM is less than so many bytes for each copy. Linux would kill a
        process that used more."""
        available = int(OF_HOST * available_bytes())
        if size * self.copies > available:
            raise RequestError(
                f"{purpose} takes {size / GB:.1f} GB of RAM, {self.copies} times on this machine, and "
                f"{available / GB:.1f} GB are free.",
                advice,
            )

    def allocate(self, start: int, size: int, device: torch.device) -> torch.Tensor:
        """These bytes. They are pinned as long as the tensor lives, if so many can be: pinned memory is copied to the
        device several times as fast."""
        if self.mapped is None:
            self.mapped = (
                torch.frombuffer(self.shared.view(self.size), dtype=torch.uint8)
                if self.shared and self.size
                else torch.empty(self.size, dtype=torch.uint8)
            )
        found = self.mapped[start : start + size]
        pin(found, device)
        return found

    def own_part(self, size: int) -> tuple[int, int]:
        """Where the part of these bytes that this rank writes starts and stops. The others may read it once all ranks
        have agreed that they have written."""
        own = shard_range(-(-size // ALIGNMENT), self.place, self.writers)
        return min(size, own.start * ALIGNMENT), min(size, own.stop * ALIGNMENT)


def agree_on_memory(
    what: object, size: int, group: dist.ProcessGroup | None, last: HostMemory | None = None
) -> HostMemory:
    """Finds the ranks of this machine that have the same weights, and memory for all of them.

    what: alike on ranks that have the same weights, by `repr`. group: of all ranks that have weights, for tensors on
    the CPU. last: the memory of the last time, which is used again where it is as large and all of these ranks have it.
    All ranks call this, and nothing in it raises on one alone. A rank that cannot share has memory of its own.
    """
    machine = int(os.environ.get("GROUP_RANK", "0"))  # torchrun's number of it
    own = (machine, zlib.crc32(repr(what).encode()))
    last = last if last and last.size == size else None
    known = last.shared if last else None
    address = known.address if known else NOWHERE
    found = gather_numbers((*own, *address), group)
    peers = [rank for rank, each in enumerate(found) if each[:2] == own]
    copies = len({each[1] for each in found if each[0] == machine})
    place, shared = peers.index(dist.get_rank(group)), None
    if known and all(each[2:] == address for each in map(found.__getitem__, peers)):
        shared = known
    elif place == 0 and len(peers) > 1:
        shared = create_shared(size)
    address = Address(*gather_numbers(shared.address if shared else NOWHERE, group)[peers[0]])
    if shared is None and address != NOWHERE:
        shared = open_shared(address)
    have = gather_numbers((int(shared is not None),), group)
    writers = len(peers)
    if len(peers) > 1 and not all(have[peer] == (1,) for peer in peers):
        shared, place, writers, copies = None, 0, 1, sum(each[0] == machine for each in found)
    memory = last if last and last.shared is shared else HostMemory(size, shared)
    memory.place, memory.writers, memory.copies = place, writers, copies
    return memory


def create_shared(size: int) -> SharedMemory | None:
    """Memory of this size for others to open; None where it cannot be had."""
    if not IS_SHAREABLE or not size:
        return None
    try:
        memory = SharedMemory.create("weights")
        memory.view(size)
    except (OSError, ValueError):
        return None
    return memory


def open_shared(address: Address) -> SharedMemory | None:
    """Another rank's memory; None where it cannot be opened."""
    try:
        return SharedMemory.open(address)
    except OSError:
        return None


def available_bytes() -> int:
    """The RAM that is free or can be freed; unlimited where the system does not tell."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return sys.maxsize
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024
