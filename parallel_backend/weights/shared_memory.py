"""Host memory that several processes of one machine have mapped."""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple


class Address(NamedTuple):
    """Where another process of the same user finds it. pid: 0 for none."""

    pid: int
    descriptor: int


NOWHERE = Address(0, 0)
IS_SHAREABLE = hasattr(os, "memfd_create")  # on Linux
KEPT = 256 << 20  # bytes beyond what is asked for, that are kept for the next time


class SharedMemory:
    """Anonymous memory (memfd) that grows with what is asked of it; gone when the last process has let go of it."""

    def __init__(self, descriptor: int, address: Address) -> None:
        self.descriptor = descriptor
        self.address = address
        self.map: mmap.mmap | None = None
        self.filled = 0  # bytes, as its owner has asked for them

    @classmethod
    def create(cls, name: str) -> SharedMemory:
        """name: as /proc tells it. Raises OSError where the process has no descriptors left."""
        descriptor = os.memfd_create(f"paralleldit-{name}")
        return cls(descriptor, Address(os.getpid(), descriptor))

    @classmethod
    def open(cls, address: Address) -> SharedMemory:
        """Another process's. Raises OSError where that process is not to be looked into."""
        return cls(os.open(f"/proc/{address.pid}/fd/{address.descriptor}", os.O_RDWR), address)

    def __del__(self) -> None:
        os.close(self.descriptor)  # what is mapped stays until nothing refers to it

    def view(self, length: int) -> memoryview:
        """The first `length` bytes. Its owner asks first, which makes it as large as that needs, and gives back what
        more there was of the last time, if that is much: a VAE's weights are a frame that comes once."""
        if self.map is None or len(self.map) < length:
            if self.address.pid == os.getpid():
                os.ftruncate(self.descriptor, 1 << (length - 1).bit_length())
            self.map = mmap.mmap(self.descriptor, 0)
        if self.address.pid == os.getpid():
            if self.filled - length > KEPT:
                start = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
                self.map.madvise(mmap.MADV_REMOVE, start, len(self.map) - start)
            self.filled = length
        return memoryview(self.map)[:length]
