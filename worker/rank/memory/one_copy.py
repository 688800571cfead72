"""One copy of parked weights for the ranks of a machine that have the same."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from parallel_backend.weights.parking import Parking
from parallel_backend.weights.shared_memory import IS_SHAREABLE, NOWHERE, Address, SharedMemory


class Copy(NamedTuple):
    """shared: the memory for it, if several ranks have it. writes: whether this rank is who writes it. copies: how many
    there are to be on this machine."""

    shared: SharedMemory | None
    writes: bool
    copies: int


def one_copy(parking: Parking, places: Sequence[int], group: dist.ProcessGroup) -> Copy:
    """Finds who has the same weights on this machine, and memory for them all, that of the last time if it fits.

    Every rank calls it, and nothing in it raises on one alone. Without memory for all, each has its own.
    """
    machine = int(os.environ.get("GROUP_RANK", "0"))  # torchrun's number of it
    own = (machine, zlib.crc32(repr((places, parking.layout())).encode()))
    rows = gathered((*own, *parking.last_address), group)
    peers = [rank for rank, row in enumerate(rows) if row[:2] == own]
    copies = len({row[1] for row in rows if row[0] == machine})
    writes = dist.get_rank() == peers[0]
    shared, last = None, parking.last_address
    if last != NOWHERE and all(row[2:] == last for row in map(rows.__getitem__, peers)):
        shared = parking.shared
    elif writes and len(peers) > 1:
        shared = created(parking.size)
    address = Address(*gathered(shared.address if shared else NOWHERE, group)[peers[0]])
    if shared is None and address != NOWHERE:
        shared = opened(address)
    have = gathered((int(shared is not None),), group)
    if len(peers) == 1 or all(have[peer] == (1,) for peer in peers):
        return Copy(shared, writes, copies)
    return Copy(None, True, int(os.environ["LOCAL_WORLD_SIZE"]))


def gathered(values: Sequence[int], group: dist.ProcessGroup) -> list[tuple[int, ...]]:
    """Every rank's."""
    own = torch.tensor(values)
    if dist.get_world_size() == 1:
        return [tuple(own.tolist())]
    found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own, group=group)
    return [tuple(each.tolist()) for each in found]


def created(size: int) -> SharedMemory | None:
    """Memory of this size for others to open; None where it cannot be had."""
    if not IS_SHAREABLE or not size:
        return None
    try:
        memory = SharedMemory.create("weights")
        memory.view(size)
    except (OSError, ValueError):
        return None
    return memory


def opened(address: Address) -> SharedMemory | None:
    try:
        return SharedMemory.open(address)
    except OSError:
        return None
