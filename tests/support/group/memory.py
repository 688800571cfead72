"""Has a rank run out of memory, really: its process gets a limit, or its card is filled."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

ROOM = 8 << 20  # bytes that the rank may have in addition


@contextmanager
def little_memory(pid: int, room: int = ROOM) -> Iterator[None]:
    """While entered, the process can have only so much data more than now."""
    fields = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    (used,) = (int(parts[1]) << 10 for parts in fields if parts[0] == "VmData:")
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(pid, resource.RLIMIT_DATA, (used + room, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_DATA, unlimited)


@contextmanager
def full_card(card: int, room: int = ROOM) -> Iterator[None]:
    """While entered, a card's free memory is taken, but for pieces smaller than `room`."""
    taken, size = [], torch.cuda.mem_get_info(card)[0]
    while size > room:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device=f"cuda:{card}"))
        except torch.OutOfMemoryError:
            size //= 2
    try:
        yield
    finally:
        taken.clear()
        torch.cuda.empty_cache()
