"""Weights that wait in host memory, while the device that they are computed on is free for others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import torch

from ..errors import RequestError
from .loading import local_part

# Torch rounds pinned memory up to a power of two; weights one by one would take nearly twice their size.
SLAB_BYTES = 1 << 28
GIGABYTE = 1 << 30


class Parking:
    """Takes a module's parameters and buffers off their device, and puts them back.

    Their storages are emptied and filled in place, so that whatever refers to a weight still does: a tied weight, a
    view, a DTensor, a hook. No collectives are run.
    beside: tensors that go with the module's own; to be changed only while they are not parked.
    is_parked: whether `take` was called since the last `restore`; so it is the same on all ranks that call them
    together, also where one of them raised.
    """

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        """device: what is elsewhere stays there."""
        self.module = module
        self.device = device
        self.beside: list[torch.Tensor] = []
        self.is_parked = False
        self.storages: list[tuple[torch.UntypedStorage, int]] = []  # and how many bytes they had
        self.slabs: list[torch.Tensor] = []

    def take(self) -> None:
        """Moves the weights to host memory, pinned if there is enough that can be.

        Does nothing if they are there. Raises RequestError for too little host memory; they have not moved then.
        """
        if self.is_parked:
            return
        self.is_parked = True
        storages = [(storage, storage.nbytes()) for storage in storages_of(self.module, self.device, self.beside)]
        total = sum(size for _, size in storages)
        check_room(total)
        pinned = self.device.type == "cuda"
        slabs = [host_memory(min(SLAB_BYTES, total - start), pinned) for start in range(0, total, SLAB_BYTES)]
        for on_device, on_host in pieces(storages, slabs):
            on_host.copy_(on_device, non_blocking=True)
        self.synchronise()
        for storage, _ in storages:
            storage.resize_(0)
        self.storages, self.slabs = storages, slabs

    def restore(self) -> None:
        """Puts the weights back and frees the host memory. Raises torch.OutOfMemoryError; they stay parked then."""
        try:
            for storage, size in self.storages:
                storage.resize_(size)
        except RuntimeError:
            for storage, _ in self.storages:
                storage.resize_(0)
            raise
        for on_device, on_host in pieces(self.storages, self.slabs):
            on_device.copy_(on_host, non_blocking=True)
        self.synchronise()
        self.is_parked, self.storages, self.slabs = False, [], []

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def held_bytes(module: torch.nn.Module) -> int:
    """Bytes of a module's weights that this rank has."""
    return sum(part.nbytes for tensor in module.state_dict().values() for part in plain_parts(tensor))


def storages_of(
    module: torch.nn.Module, device: torch.device, beside: Sequence[torch.Tensor] = ()
) -> list[torch.UntypedStorage]:
    """What holds the module's parameters and buffers, and others, on a device, each once."""
    held = chain(module.parameters(), module.buffers(), beside)
    tensors = (plain for tensor in held for plain in plain_parts(tensor))
    storages = (tensor.untyped_storage() for tensor in tensors if tensor.device == device)
    return list({storage.data_ptr(): storage for storage in storages if storage.nbytes()}.values())


def plain_parts(held: torch.Tensor) -> list[torch.Tensor]:
    """What this rank holds of a parameter; of a quantised one, its packed weights and their scales."""
    held = local_part(held)
    flatten = getattr(held, "__tensor_flatten__", None)  # torch's protocol of subclasses that wrap others
    if flatten is None:
        return [held]
    names, _ = flatten()
    return [part for name in names for part in plain_parts(getattr(held, name))]


def pieces(
    storages: list[tuple[torch.UntypedStorage, int]], slabs: list[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The storages' bytes on the device and their place in the slabs, cut where a slab ends."""
    used = 0
    for storage, size in storages:
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        start = 0
        while start < size:
            slab, offset = divmod(used, SLAB_BYTES)
            count = min(size - start, SLAB_BYTES - offset)
            yield flat[start : start + count], slabs[slab][offset : offset + count]
            start, used = start + count, used + count


def host_memory(size: int, pinned: bool) -> torch.Tensor:
    """So many bytes; pinned ones are copied several times as fast, and there may be none left."""
    if pinned:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:
            pass
    return torch.empty(size, dtype=torch.uint8)


def check_room(size: int) -> None:
    """Raises RequestError if this rank's share of the free host memory is less; Linux would end a process for it."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024 // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if size > available:
        raise RequestError(
            f"Parking takes {size / GIGABYTE:.1f} GB of RAM on each rank, and {available / GIGABYTE:.1f} GB are free.",
            "Set on_free to unload.",
        )
