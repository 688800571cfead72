"""Asks the system to read a mapped file before a rank touches its bytes.

Otherwise each first touch of a page waits for the disk.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

from .tensors import PAGE

AHEAD = 256 << 20  # bytes that the system reads meanwhile
STEP = 128 << 10  # bytes of a request: Linux cuts longer ones off, where the disk takes no more at a time
ADVISE = ctypes.CDLL(None).madvise if sys.platform == "linux" else None

Item = TypeVar("Item")


def read_ahead(items: Iterable[Item], find: Callable[[Item], Iterable[torch.Tensor]]) -> Iterator[Item]:
    """Yields the items in their order. Before that, the system is asked for what a rank will read for each, and for the
    next ones, up to AHEAD bytes. find: lists an item's tensors, as far as they are in a file's pages."""
    waiting: deque[tuple[Item, int]] = deque()
    asked = 0
    for item in items:
        size = sum(map(ask_for, find(item)))
        waiting.append((item, size))
        asked += size
        while asked > AHEAD:
            first, size = waiting.popleft()
            asked -= size
            yield first
    while waiting:
        yield waiting.popleft()[0]


def ask_for(tensor: torch.Tensor) -> int:
    """Asks the system to read these bytes, and returns their number. Does not wait for them. Does nothing for tensors
    on a device, and on other systems than Linux."""
    if ADVISE is None or not tensor.is_cpu:
        return 0
    start, stop = tensor.data_ptr() // PAGE * PAGE, tensor.data_ptr() + tensor.nbytes
    for at in range(start, stop, STEP):
        ADVISE(ctypes.c_void_p(at), ctypes.c_size_t(min(STEP, stop - at)), mmap.MADV_WILLNEED)
    return tensor.nbytes
