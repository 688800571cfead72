"""Has weights wait in host memory and puts them back: one copy of what ranks of a machine have alike."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from parallel_backend.errors import RequestError, is_out_of_memory
from parallel_backend.weights.parking import Parking
from parallel_backend.weights.shared_memory import IS_SHAREABLE, NOWHERE, Address, SharedMemory

from .agreement import DONE, Ended
from .job import Job


class Copy(NamedTuple):
    """shared: the memory for it, if several ranks have it. writes: whether this rank is who writes it. copies: how many
    there are to be on this machine."""

    shared: SharedMemory | None
    writes: bool
    copies: int


def park(job: Job, parking: Parking, places: Sequence[int]) -> None:
    """Has a model's weights wait in host memory. places: what tells ranks apart that have other weights. Raises Ended
    where memory is too short on a rank; they have not moved on any then."""
    if parking.is_parked:
        return
    copy = one_copy(parking, places, job.control_group)
    try:
        job.together(lambda: parking.copy(*copy))
    except Ended:
        parking.settle()
        raise
    parking.let_go()


def unpark(job: Job, parking: Parking) -> None:
    """Puts parked weights back. Raises Ended where a rank has no room for them; they stay parked on all then."""

    def fill() -> None:
        try:
            parking.fill()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise RequestError(
                f"Rank {dist.get_rank()} has no room for the weights that wait in RAM: {error}"
            ) from error

    _, outcome = job.attempt(fill)
    if outcome.kind != DONE:
        parking.let_go()  # on the ranks that had room for them
        raise Ended(outcome)
    parking.settle()


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
