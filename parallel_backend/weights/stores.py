"""Where the rows of fetched blocks wait, and how they come: shared out over ranks, or in the host's memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from ..device import copier
from ..groups.collectives import ALL_GATHER
from ..groups.mesh import Axis
from ..plan import HOST, SHARED
from .flat_block import FlatBlock, Values
from .host_memory import HostMemory
from .tensors import ALIGNMENT, align

PAGE = 4096  # bytes, of what can be pinned by itself

Arrive = Callable[[], object]  # waits for what was asked for


class Store(Protocol):
    """What rows wait in, by the place of their block.

    kind: weights= of a plan. is_collective: whether a fetch waits for other ranks. index: which share of each row is
    this rank's; 0 where each has all.
    """

    kind: str
    is_collective: bool
    index: int

    def allocate(self, place: int, block: FlatBlock) -> None:
        """Makes room for a row. Raises as torch does where memory lacks."""
        ...

    def write(self, place: int, block: FlatBlock, values: Values, only: str = "") -> None:
        """Writes what this rank is to write of a row, see `FlatBlock.write`."""
        ...

    def drop(self, place: int) -> None: ...

    def length(self, block: FlatBlock) -> int:
        """Of the buffer that a row comes to."""
        ...

    def fetch(self, place: int, buffer: torch.Tensor) -> Arrive:
        """Has a row come to a buffer, once what was given to the device before this has been done."""
        ...

    def on_device(self) -> list[torch.Tensor]:
        """What of it is on the device."""
        ...


class ShardedStore:
    """Each of the ranks that compute with the same weights keeps as many bytes of a row, and all give theirs.

    axis: these ranks, with a group of its own: in that of other collectives, a row that is on its way would have those
    wait that the running block needs. torch's `fully_shard` was tried for this: it dequantises ComfyUI's
    QuantizedTensor without a word, to two to four times the memory, changes the module's class, refuses scalars and
    weights that are tied, breaks where a rank has no rows, and holds three blocks.
    """

    kind, is_collective = SHARED, True

    def __init__(self, axis: Axis, device: torch.device) -> None:
        self.axis, self.device, self.index = axis, device, axis.index
        self.shares: dict[int, torch.Tensor] = {}

    def length(self, block: FlatBlock) -> int:
        unit = ALIGNMENT * self.axis.degree
        return -(-block.size // unit) * unit

    def allocate(self, place: int, block: FlatBlock) -> None:
        self.shares[place] = torch.zeros(self.length(block) // self.axis.degree, dtype=torch.uint8, device=self.device)

    def write(self, place: int, block: FlatBlock, values: Values, only: str = "") -> None:
        share = self.shares[place]
        block.write(share, self.axis.index * len(share), values, only)

    def drop(self, place: int) -> None:
        del self.shares[place]

    def fetch(self, place: int, buffer: torch.Tensor) -> Arrive:
        share = self.shares[place]
        return getattr(dist, ALL_GATHER)(buffer, share, group=self.axis.group, async_op=True).wait

    def on_device(self) -> list[torch.Tensor]:
        return list(self.shares.values())


class HostStore:
    """One copy on a machine, see `HostMemory`. Rows that are not fetched take no RAM."""

    kind, is_collective, index = HOST, False, 0

    def __init__(self, sizes: Sequence[int], device: torch.device, memory: HostMemory | None = None) -> None:
        """sizes: of the rows of all blocks. memory: of `total` bytes; this rank's own without."""
        self.device = device
        self.offsets = [0, *itertools.accumulate(map(whole_pages, sizes))]
        self.memory = memory or HostMemory(self.total(sizes))
        self.blocks: dict[int, torch.Tensor] = {}
        self.copy = copier(device)

    @staticmethod
    def total(sizes: Sequence[int]) -> int:
        """The bytes that it maps."""
        return sum(map(whole_pages, sizes))

    def length(self, block: FlatBlock) -> int:
        return align(block.size)

    def allocate(self, place: int, block: FlatBlock) -> None:
        self.blocks[place] = self.memory.allocate(self.offsets[place], self.length(block), self.device)

    def write(self, place: int, block: FlatBlock, values: Values, only: str = "") -> None:
        start, stop = self.memory.own_part(self.length(block))
        block.write(self.blocks[place][start:stop], start, values, only)

    def drop(self, place: int) -> None:
        del self.blocks[place]

    def fetch(self, place: int, buffer: torch.Tensor) -> Arrive:
        return self.copy(buffer, self.blocks[place])

    def on_device(self) -> list[torch.Tensor]:
        return []


def whole_pages(size: int) -> int:
    """The bytes of the pages that a row of this size takes."""
    return -(-align(size) // PAGE) * PAGE
