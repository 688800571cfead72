"""Where the rows of fetched blocks wait, and how they come: shared out over ranks, or in the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from ..device import copier, pin
from ..groups.collectives import ALL_GATHER
from ..groups.mesh import Axis
from ..groups.mesh_layout import shard_range
from ..plan import HOST, SHARED
from .packing import Row, Values
from .parking import ALIGNMENT, aligned
from .shared_memory import SharedMemory

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

    def allocate(self, place: int, row: Row) -> None:
        """Makes room for a row. Raises as torch does where memory lacks."""
        ...

    def write(self, place: int, row: Row, values: Values, only: str = "") -> None:
        """Writes what this rank is to write of a row, see `Row.write`."""
        ...

    def drop(self, place: int) -> None: ...

    def length(self, row: Row) -> int:
        """Of the buffer that a row comes to."""
        ...

    def fetch(self, place: int, buffer: torch.Tensor) -> Arrive:
        """Has a row come to a buffer, once what was given to the device before this has been done."""
        ...

    def on_device(self) -> list[torch.Tensor]:
        """What of it is on the device."""
        ...


class PeerStore:
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

    def length(self, row: Row) -> int:
        unit = ALIGNMENT * self.axis.degree
        return -(-row.size // unit) * unit

    def allocate(self, place: int, row: Row) -> None:
        self.shares[place] = torch.zeros(self.length(row) // self.axis.degree, dtype=torch.uint8, device=self.device)

    def write(self, place: int, row: Row, values: Values, only: str = "") -> None:
        share = self.shares[place]
        row.write(share, self.axis.index * len(share), values, only)

    def drop(self, place: int) -> None:
        del self.shares[place]

    def fetch(self, place: int, buffer: torch.Tensor) -> Arrive:
        share = self.shares[place]
        return getattr(dist, ALL_GATHER)(buffer, share, group=self.axis.group, async_op=True).wait

    def on_device(self) -> list[torch.Tensor]:
        return list(self.shares.values())


class HostStore:
    """One copy on a machine, in memory that its ranks with the same weights have mapped and each has pinned.

    A row that is not fetched has no memory: what is mapped and never written to takes none. Where ranks share it, each
    writes as many bytes, and the others may read them once all have agreed that they are written.
    """

    kind, is_collective, index = HOST, False, 0

    def __init__(
        self, sizes: Sequence[int], device: torch.device, shared: SharedMemory | None, place: int, writers: int
    ) -> None:
        """sizes: of the rows of all blocks. shared: of `total` bytes; None for memory of this rank's own. place: of
        this rank among those that write."""
        self.device, self.place, self.writers = device, place, writers
        self.offsets = [0]
        for size in sizes:
            self.offsets.append(self.offsets[-1] + -(-aligned(size) // PAGE) * PAGE)
        total = self.offsets[-1]
        self.memory = (
            torch.frombuffer(shared.view(total), dtype=torch.uint8)
            if shared
            else torch.empty(total, dtype=torch.uint8)  # pages that are touched are there, and no others
        )
        self.rows: dict[int, torch.Tensor] = {}
        self.copy = copier(device)

    @staticmethod
    def total(sizes: Sequence[int]) -> int:
        """The bytes that it maps."""
        return sum(-(-aligned(size) // PAGE) * PAGE for size in sizes)

    def length(self, row: Row) -> int:
        return aligned(row.size)

    def allocate(self, place: int, row: Row) -> None:
        self.rows[place] = self.memory[self.offsets[place] : self.offsets[place] + self.length(row)]
        pin(self.rows[place], self.device)

    def write(self, place: int, row: Row, values: Values, only: str = "") -> None:
        held = self.rows[place]
        own = shard_range(len(held) // ALIGNMENT, self.place, self.writers)
        row.write(held[own.start * ALIGNMENT : own.stop * ALIGNMENT], own.start * ALIGNMENT, values, only)

    def drop(self, place: int) -> None:
        del self.rows[place]

    def fetch(self, place: int, buffer: torch.Tensor) -> Arrive:
        return self.copy(buffer, self.rows[place])

    def on_device(self) -> list[torch.Tensor]:
        return []
