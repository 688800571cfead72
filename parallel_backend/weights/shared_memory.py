"""Host memory that several processes of one machine map."""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple


class Address(NamedTuple):
    """Where another process of the same user finds the memory. pid: 0 for no memory."""

    pid: int
    descriptor: int


NOWHERE = Address(0, 0)
IS_SHAREABLE = hasattr(os, "memfd_create")  # on Linux
KEPT = 256 << 20  # surplus bytes that are kept for the next time


class SharedMemory:
    """Anonymous memory (memfd) that grows on demand. It is freed when the last process lets go of it."""

    def __init__(self, descriptor: int, address: Address, writes: bool) -> None:
        self.descriptor = descriptor
        self.address = address
        self.writes = writes
        self.map: mmap.mmap | None = None
        self.used = 0  # bytes that this writer asked for last

    @classmethod
    def create(cls, name: str) -> SharedMemory:
        """Creates memory. Raises OSError if the process has no descriptors left. name: how /proc shows it."""
        descriptor = os.memfd_create(f"paralleldit-{name}")
        return cls(descriptor, Address(os.getpid(), descriptor), writes=True)

    @classmethod
    def open(cls, address: Address, writes: bool = False) -> SharedMemory:
        """Opens another process's memory. writes: whether this process writes to it, too, in turn with its owner.
        Raises OSError if that process may not be inspected."""
        return cls(os.open(f"/proc/{address.pid}/fd/{address.descriptor}", os.O_RDWR), address, writes)

    def __del__(self) -> None:
        os.close(self.descriptor)  # the mapping stays until nothing refers to it

    def view(self, length: int) -> memoryview:
        """Returns the first `length` bytes.

        A writer calls it first, which grows the memory if needed. It also frees memory that the last call needed and
        this one does not, if that is much: a VAE's weights, for example, are one large frame that comes once.
        """
        if self.map is None or len(self.map) < length:
            if self.writes and os.fstat(self.descriptor).st_size < length:
                os.ftruncate(self.descriptor, 1 << (length - 1).bit_length())
            self.map = mmap.mmap(self.descriptor, 0)
        if self.writes:
            if self.used - length > KEPT:
                start = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
                self.map.madvise(mmap.MADV_REMOVE, start, len(self.map) - start)
            self.used = length
        return memoryview(self.map)[:length]
