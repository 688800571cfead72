"""Parks weights in RAM, so that their device is free for other models."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch

from ..device import synchronise
from .free_ram import available_ram_bytes
from .host_memory import HostMemory
from .tensors import align, list_plain_tensors, list_storages, whole_pages

PIECE = 1 << 30  # bytes: as much is copied while the next is being pinned
StorageSizes = list[tuple[torch.UntypedStorage, int]]  # each storage with its bytes while it is filled


class Piece(NamedTuple):
    """Storages whose copies are pinned together, because no copy may cross from one piece to the next. start, size: of
    the piece, in bytes of RAM. It starts at a page."""

    start: int
    size: int
    storages: StorageSizes


def cut_pieces(storages: StorageSizes) -> list[Piece]:
    """Cuts the storages into pieces of at least PIECE bytes, except the last."""
    found: list[Piece] = []
    for storage, size in storages:
        if not found or found[-1].size >= PIECE:
            found.append(Piece(whole_pages(end_of(found)), 0, []))
        last = found[-1]
        last.storages.append((storage, size))
        found[-1] = last._replace(size=last.size + align(size))
    return found


def end_of(pieces: Sequence[Piece]) -> int:
    return pieces[-1].start + pieces[-1].size if pieces else 0


class Parking:
    """Takes a module's parameters and buffers off their device, and puts them back.

    It empties and refills their storages in place. So every reference to a weight stays valid: a tied weight, a view, a
    hook. It runs no collectives.
    extra: tensors that are parked with the module's own.
    scratch: tensors whose values need not be kept. Parameters may be views of them.
    Change extra and scratch only while nothing is parked.
    memory: keeps the weights while they are parked. It is kept for the next time.
    host: the pieces of that memory.
    """

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        """device: weights on other devices stay where they are."""
        self.module = module
        self.device = device
        self.extra: list[torch.Tensor] = []
        self.scratch: list[torch.Tensor] = []
        self.is_parked = False
        self.pieces: list[Piece] = []
        self.emptied: StorageSizes = []  # the storages of scratch
        self.memory: HostMemory | None = None
        self.host: list[torch.Tensor] = []

    @property
    def size(self) -> int:
        """The bytes of RAM that the weights need."""
        return end_of(self.cut())

    def cut(self) -> list[Piece]:
        scratch = {tensor.untyped_storage().data_ptr() for tensor in self.scratch}
        every = list_storages(self.module, self.device, self.extra)
        return cut_pieces([(each, each.nbytes()) for each in every if each.data_ptr() not in scratch])

    def layout(self) -> list[tuple[str, int]]:
        """Lists the name and bytes of each tensor on the device. It is equal on ranks with the same weights there."""
        named = chain(self.module.named_parameters(), self.module.named_buffers())
        every = [*named, *((f"extra {index}", each) for index, each in enumerate(self.extra))]
        parts = ((name, part) for name, tensor in every for part in list_plain_tensors(tensor))
        return [(name, part.nbytes) for name, part in parts if part.device == self.device]

    def copy(self, memory: HostMemory) -> None:
        """Copies this rank's part of the weights to RAM. They stay on the device, too. memory: from `agree_on_memory`.
        Raises RequestError if there is too little RAM."""
        self.pieces = self.cut()
        self.emptied = [(tensor.untyped_storage(), tensor.untyped_storage().nbytes()) for tensor in self.scratch]
        total = end_of(self.pieces)
        sizes = [piece.size for piece in self.pieces]
        if is_new := memory is not self.memory or [len(host) for host in self.host] != sizes:
            self.memory, self.host = None, []
            memory.check_room(total, "Parking", "Set on_free to unload.")
            self.host = [memory.allocate(piece.start, piece.size, self.device) for piece in self.pieces]
            self.memory = memory
        first, last = memory.own_part(total)
        for piece, host in zip(self.pieces, self.host, strict=True):
            if memory.pinner:
                memory.pinner.wait(pieces=1)
            for start, on_device, on_host in pairs(piece, host):
                own = slice(max(0, first - start), max(0, last - start))
                on_host[own].copy_(on_device[own], non_blocking=True)
        synchronise(self.device)
        if is_new and memory.pinner and memory.pinner.seconds:
            logging.info("parked weights: %s", memory.pinner)

    def free_device(self) -> None:
        """Frees the device's memory. Call `copy` first."""
        for storage, _ in self.sizes():
            storage.resize_(0)
        self.is_parked = True

    def sizes(self) -> Iterator[tuple[torch.UntypedStorage, int]]:
        """Yields every storage that parking empties, and its bytes while it is filled."""
        yield from chain(*(piece.storages for piece in self.pieces), self.emptied)

    def fill_device(self) -> None:
        """Puts the weights back and keeps the copy, so that `free_device` can free the device again. Raises
        torch.OutOfMemoryError, and then they stay parked."""
        if self.memory is None:
            raise ValueError("No weights are parked.")
        try:
            for storage, size in self.sizes():
                storage.resize_(size)
        except RuntimeError:
            for storage, _ in self.sizes():
                storage.resize_(0)
            raise
        for piece, host in zip(self.pieces, self.host, strict=True):
            for _, on_device, on_host in pairs(piece, host):
                on_device.copy_(on_host, non_blocking=True)
        synchronise(self.device)
        self.is_parked = False

    def end(self) -> None:
        """Ends parking after the weights are back. Keeps the RAM for the next time if as much again is free for others,
        because pinning takes longer than copying."""
        self.pieces = []
        if self.memory and available_ram_bytes() < self.memory.size:
            self.memory, self.host = None, []


def pairs(piece: Piece, host: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yields for each storage of a piece: where it starts in RAM, its bytes on the device, its bytes in RAM."""
    start = 0
    for storage, size in piece.storages:
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        yield piece.start + start, flat, host[start : start + size]
        start += align(size)
