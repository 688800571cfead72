"""Weights that wait in host memory, while the device that they are computed on is free for others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch

from ..device import pin, synchronise
from ..errors import RequestError
from .shared_memory import SharedMemory

GIGABYTE = 1 << 30
ALIGNMENT = 256  # bytes, of a weight in host memory


class Parking:
    """Takes a module's parameters and buffers off their device, and puts them back.

    Their storages are emptied and filled in place, so that whatever refers to a weight still does: a tied weight, a
    view, a DTensor, a hook. No collectives are run.
    beside: tensors that go with the module's own; scratch: tensors whose values need not be kept, parameters that are
    views of them among them. Both are to be changed only while nothing is parked.
    host: where the weights are while they are parked; it is kept for the next time. shared: what it is of, if other
    ranks may have it, too.
    """

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        """device: what is elsewhere stays there."""
        self.module = module
        self.device = device
        self.beside: list[torch.Tensor] = []
        self.scratch: list[torch.Tensor] = []
        self.is_parked = False
        self.storages: list[tuple[torch.UntypedStorage, int]] = []  # and how many bytes they had
        self.emptied: list[tuple[torch.UntypedStorage, int]] = []  # of scratch, likewise
        self.host: torch.Tensor | None = None
        self.shared: SharedMemory | None = None

    @property
    def size(self) -> int:
        """The bytes of host memory that the weights take."""
        return sum(aligned(storage.nbytes()) for storage in self.found())

    def found(self) -> list[torch.UntypedStorage]:
        """What is to be copied."""
        scratch = {tensor.untyped_storage().data_ptr() for tensor in self.scratch}
        every = storages_of(self.module, self.device, self.beside)
        return [storage for storage in every if storage.data_ptr() not in scratch]

    @property
    def last(self) -> SharedMemory | None:
        """The memory of the last time, if it was shared and is as large as the weights are now."""
        return self.shared if self.host is not None and self.host.numel() == self.size else None

    def layout(self) -> list[tuple[str, int]]:
        """The names of what is on the device, and its bytes: alike on ranks that have the same weights there."""
        named = chain(self.module.named_parameters(), self.module.named_buffers())
        every = [*named, *((f"beside {index}", tensor) for index, tensor in enumerate(self.beside))]
        parts = ((name, part) for name, held in every for part in plain_parts(held))
        return [(name, part.nbytes) for name, part in parts if part.device == self.device]

    def copy(self, shared: SharedMemory | None = None, writes: bool = True, copies: int = 1) -> None:
        """Copies the weights to host memory; pinned, if so much can be. They stay where they are, too.

        shared: that of several ranks, of which one `writes`; without, to memory of this rank's own. copies: how many
        there are to be on this machine. Raises RequestError for too little memory.
        """
        self.storages = [(storage, storage.nbytes()) for storage in self.found()]
        self.emptied = [(tensor.untyped_storage(), tensor.untyped_storage().nbytes()) for tensor in self.scratch]
        total = sum(aligned(size) for _, size in self.storages)
        if self.host is None or self.host.numel() != total or shared is not self.shared:
            self.host = self.shared = None
            check_room(total, copies)
            self.host = host_memory(total, self.device, shared)
            self.shared = shared
        if writes:
            for on_device, on_host in pairs(self.storages, self.host):
                on_host.copy_(on_device, non_blocking=True)
            synchronise(self.device)

    def let_go(self) -> None:
        """Frees the device of the weights, which are copied."""
        for storage, _ in self.storages:
            storage.resize_(0)
        for storage, _ in self.emptied:
            storage.resize_(0)
        self.is_parked = True

    def restore(self) -> None:
        """Puts the weights back for good. Raises torch.OutOfMemoryError; they stay parked then."""
        self.fill()
        self.settle()

    def fill(self) -> None:
        """Puts the weights back; `let_go` takes them off the device again. Raises torch.OutOfMemoryError; they stay
        parked then."""
        if self.host is None:
            raise ValueError("No weights are parked.")
        try:
            for storage, size in (*self.storages, *self.emptied):
                storage.resize_(size)
        except RuntimeError:
            for storage, _ in (*self.storages, *self.emptied):
                storage.resize_(0)
            raise
        for on_device, on_host in pairs(self.storages, self.host):
            on_device.copy_(on_host, non_blocking=True)
        synchronise(self.device)
        self.is_parked = False

    def settle(self) -> None:
        """The weights are back. Host memory stays for the next time where there is as much again for others: it takes
        longer to pin than to copy to."""
        self.storages = []
        if self.host is not None and available_bytes() < self.host.numel():
            self.host = self.shared = None


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
    """What this rank holds of a parameter; of a quantised one, its packed weights and their scales. They are the
    tensors themselves, which may be given other memory: a DTensor's `to_local` gives a view."""
    flatten = getattr(held, "__tensor_flatten__", None)  # torch's protocol of subclasses that wrap others, its DTensor
    if flatten is None:
        return [held]
    names, _ = flatten()
    inner = (getattr(held, name) for name in names)  # of a DTensor since torch 2.13 its mesh, too
    return [part for each in inner if isinstance(each, torch.Tensor) for part in plain_parts(each)]


def aligned(size: int) -> int:
    """So many bytes, or the few more that end where the next weight may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def pairs(
    storages: Sequence[tuple[torch.UntypedStorage, int]], host: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The storages' bytes on the device and their place in host memory."""
    found, start = [], 0
    for storage, size in storages:
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        found.append((flat, host[start : start + size]))
        start += aligned(size)
    return found


def host_memory(size: int, device: torch.device, shared: SharedMemory | None) -> torch.Tensor:
    """So many bytes. Pinned ones are copied several times as fast, and there may be none left."""
    plain = torch.frombuffer(shared.view(size), dtype=torch.uint8) if shared else torch.empty(size, dtype=torch.uint8)
    pin(plain, device)
    return plain


def available_bytes() -> int:
    """The host's memory that is free or can be had; unlimited where the system does not tell."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return sys.maxsize
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def check_room(size: int, copies: int) -> None:
    """Raises RequestError if this copy's share of the free host memory is less; Linux would end a process for it."""
    available = available_bytes() // copies
    if size > available:
        raise RequestError(
            f"Parking takes {size / GIGABYTE:.1f} GB of RAM, {copies} times on this machine, and "
            f"{available / GIGABYTE:.1f} GB are free for each.",
            "Set on_free to unload.",
        )
