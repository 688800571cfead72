"""What a process of Linux takes of memory, and reads of files, while it loads a model and computes with it."""

from __future__ import annotations

import ctypes
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from worker.settings import Settings

SMALL = 1 << 16  # bytes: what is smaller is taken for what lies in memory
COPY = "memfd:paralleldit-weights"  # what shared memory is called in /proc


class Place(NamedTuple):
    """Where in a file an address is."""

    path: str
    offset: int


def settings_that_free(folder: Path) -> Settings:
    """Of a group whose ranks give freed tensors back to the system: under a limit, what a rank frees is no room for it.

    folder: gets the ranks' interpreter, so that no other process is started so.
    """
    python = folder / "python-that-frees"
    python.write_text(f'#!/bin/sh\nMALLOC_MMAP_THRESHOLD_=65536 exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return Settings(python=str(python))


def shared_bytes() -> int:
    """This process's part of the shared memory that it has touched: those of all processes add up to what there is."""
    found, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[0] in "0123456789abcdef":  # a mapping's own line, and not of its sizes, which begin with capitals
            counts = COPY in line
        elif counts and line.startswith("Pss:"):
            found += int(line.split()[1]) << 10
    return found


class Storages(TorchDispatchMode):
    """While entered, follows what operations make and read.

    live, peak: bytes of storages in memory of this process, each once; what is mapped from files and from shared memory
    is none of them. read: by file, the ranges whose values operations have read.
    """

    def __init__(self, files: Iterable[str]) -> None:
        super().__init__()
        self.files = [str(Path(file).resolve()) for file in files]
        self.live = self.peak = 0
        self.read: dict[str, list[tuple[int, int]]] = {file: [] for file in self.files}
        self.seen: dict[int, tuple[weakref.ref, Place | None]] = {}

    def place_of(self, tensor: torch.Tensor) -> Place | None:
        """Where in a file a tensor's values are; None for what is in memory, which is counted until it is let go of."""
        storage = tensor.untyped_storage()
        key, size, address = storage._cdata, storage.nbytes(), storage.data_ptr()
        if not size:
            return None
        if key not in self.seen or self.seen[key][0]() is None:
            place = mapped_at(address, [*self.files, COPY]) if size > SMALL else None
            counted = 0 if place else size

            def let_go(_storage: weakref.ref) -> None:
                self.live -= counted
                self.seen.pop(key, None)

            self.seen[key] = weakref.ref(storage, let_go), place
            self.live += counted
            self.peak = max(self.peak, self.live)
        place = self.seen[key][1]
        return place and place._replace(offset=place.offset + tensor.data_ptr() - address)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if type(each) is not int and is_plain(each)]
        for each in given:
            place = self.place_of(each)
            if place and place.path in self.read and not func.is_view:
                self.read[place.path].append((place.offset, place.offset + each.nbytes))
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if is_plain(each):
                self.place_of(each)
        return made

    @property
    def read_bytes(self) -> int:
        return sum(stop - start for ranges in self.read.values() for start, stop in joined(ranges))


def is_plain(value: object) -> bool:
    """Whether it is a tensor with memory."""
    is_tensor = isinstance(value, torch.Tensor) and not hasattr(value, "__tensor_flatten__")
    return is_tensor and value.device.type == "cpu"


def mapped_at(address: int, names: Iterable[str]) -> Place | None:
    """The file of these, by a part of its name, that an address of this process is of."""
    wanted = [name.encode() for name in names]
    start, end = heap()
    if start <= address < end(0):  # the list of all mappings takes a hundred times as long to say so
        return None
    for line in Path("/proc/self/maps").read_bytes().splitlines():
        name = next((name for name in wanted if name in line), None)
        if name:
            span, _, offset, *_ = line.split(maxsplit=5)
            start, stop = (int(each, 16) for each in span.split(b"-"))
            if start <= address < stop:
                return Place(name.decode(), int(offset, 16) + address - start)
    return None


@functools.cache
def heap() -> tuple[int, Callable[[int], int]]:
    """Where this process's heap begins, which has no file's pages, and what tells where it ends."""
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
    end = ctypes.CDLL(None).sbrk
    end.restype, end.argtypes = ctypes.c_size_t, [ctypes.c_ssize_t]
    return int(line.partition("-")[0], 16), end


def joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same without overlaps."""
    begun: tuple[int, int] | None = None
    for start, stop in sorted(ranges):
        if begun and start <= begun[1]:
            begun = begun[0], max(begun[1], stop)
        else:
            if begun:
                yield begun
            begun = start, stop
    if begun:
        yield begun
