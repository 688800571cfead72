"""Stores that keep the weights of fetched blocks: sharded over ranks, or in the host's memory."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from ..device import Pinner, copier
from ..groups.collectives import ALL_GATHER
from ..groups.mesh import Axis
from ..plan import HOST, SHARED
from .flat_block import FlatBlock, Values
from .host_memory import HostMemory
from .tensors import ALIGNMENT, align, whole_pages

Arrive = Callable[[], object]  # waits for a fetch


class Store(ABC):
    """Keeps flat blocks by number, a block's index among this rank's blocks.

    kind: the plan's `weights=` value.
    axis: the ranks that keep a shard of each block, all of which a fetch needs; None if this rank has whole blocks.
    blocks: what this rank keeps or maps of each block.
    """

    kind: str
    axis: Axis | None = None

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.blocks: dict[int, torch.Tensor] = {}

    @abstractmethod
    def allocate(self, number: int, block: FlatBlock) -> None:
        """Allocates memory for a block. Raises torch's error if there is too little."""

    @abstractmethod
    def own_part(self, block: FlatBlock) -> tuple[int, int]:
        """Returns where this rank's part of a block starts and stops."""

    def write(self, number: int, block: FlatBlock, values: Values, only: str = "") -> None:
        """Writes this rank's part of a block, see `FlatBlock.write`."""
        (start, stop), kept = self.own_part(block), self.blocks[number]
        block.write(kept if self.axis else kept[start:stop], start, values, only)

    @abstractmethod
    def length(self, block: FlatBlock) -> int:
        """Returns the length of the buffer that the block is fetched into."""

    @abstractmethod
    def fetch(self, number: int, buffer: torch.Tensor) -> Arrive:
        """Starts to fetch a block into a buffer. The copy runs after the work that the device already has."""

    def on_device(self) -> list[torch.Tensor]:
        """Lists the store's tensors on the device."""
        return []

    @property
    def pinner(self) -> Pinner | None:
        """What pins the store's memory, if it is the host's."""
        return None


class ShardedStore(Store):
    """Keeps an equal shard of each block on every rank that computes with the same weights. A fetch gathers them.

    The axis has a process group of its own. In a shared group, a fetch under way would delay the collectives that the
    running block needs. (Why not `fully_shard`: docs/dev/10-decisions.md.)
    """

    kind = SHARED

    def __init__(self, axis: Axis, device: torch.device) -> None:
        super().__init__(device)
        self.axis: Axis = axis

    def length(self, block: FlatBlock) -> int:
        unit = ALIGNMENT * self.axis.degree
        return -(-block.size // unit) * unit

    def allocate(self, number: int, block: FlatBlock) -> None:
        self.blocks[number] = torch.zeros(self.length(block) // self.axis.degree, dtype=torch.uint8, device=self.device)

    def own_part(self, block: FlatBlock) -> tuple[int, int]:
        size = self.length(block) // self.axis.degree
        return self.axis.index * size, (self.axis.index + 1) * size

    def fetch(self, number: int, buffer: torch.Tensor) -> Arrive:
        return getattr(dist, ALL_GATHER)(buffer, self.blocks[number], group=self.axis.group, async_op=True).wait

    def on_device(self) -> list[torch.Tensor]:
        return list(self.blocks.values())


class HostStore(Store):
    """Keeps one copy of the fetched blocks on a machine, see `HostMemory`. Other blocks take no RAM."""

    kind = HOST

    def __init__(self, sizes: Sequence[int], device: torch.device, memory: HostMemory) -> None:
        """sizes: the flat size of every block. memory: has `total` bytes."""
        super().__init__(device)
        self.offsets = [0, *itertools.accumulate(map(whole_pages, sizes))]
        self.memory = memory
        self.copy = copier(device)

    @staticmethod
    def total(sizes: Sequence[int]) -> int:
        """Counts the bytes to map for blocks of these sizes."""
        return sum(map(whole_pages, sizes))

    def length(self, block: FlatBlock) -> int:
        return align(block.size)

    def allocate(self, number: int, block: FlatBlock) -> None:
        self.blocks[number] = self.memory.allocate(self.offsets[number], self.length(block), self.device)

    def own_part(self, block: FlatBlock) -> tuple[int, int]:
        return self.memory.own_part(self.length(block))

    def fetch(self, number: int, buffer: torch.Tensor) -> Arrive:
        return self.copy(buffer, self.blocks[number])

    @property
    def pinner(self) -> Pinner | None:
        return self.memory.pinner
