"""Measures a rank's memory: its size, its use, and the size of an allocation that failed (OOM). Frees what is
unused."""

from __future__ import annotations

import gc
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from parallel_backend.device import (
    allocated_bytes,
    available_bytes,
    empty_caches,
    is_accelerator,
    reserved_bytes,
    total_bytes,
    trim_heap,
)
from parallel_backend.weights.free_ram import available_bytes as free_ram

# The messages of torch's own allocator, and of CUDA's (cudaMallocAsync).
ASKED = re.compile(r"(?:[Tt]r(?:ied|y) to allocate|Requested +:) ([\d.]+) ?(bytes|KiB|MiB|GiB|TiB)")
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True)
class DeviceMemory:
    """The memory that a rank computes in, in bytes.

    used: by this rank.
    free: what it can still get.
    total: for all processes, or the limit of this process.
    """

    total: int
    used: int
    free: int

    @classmethod
    def now(cls, device: torch.device) -> DeviceMemory:
        if is_accelerator(device):
            return cls(total_bytes(device), allocated_bytes(device), available_bytes(device))
        machine, process = kibibytes("/proc/meminfo"), kibibytes("/proc/self/status")
        rooms = [cls(machine.get("MemTotal", 0), process.get("VmRSS", 0), free_ram())]
        for limit, counted in list_limits():
            used = process.get(counted, 0)
            rooms.append(cls(limit, used, max(0, limit - used)))
        return min(rooms, key=lambda room: room.free)


def list_limits() -> Iterator[tuple[int, str]]:
    """Returns the limits of this process's memory in bytes, each with its counter in /proc/self/status."""
    for limit, counted in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            yield soft, counted


def kibibytes(path: str) -> dict[str, int]:
    """Returns the sizes in a file of /proc, in bytes."""
    fields = (line.split() for line in Path(path).read_text().splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) << 10 for parts in fields if len(parts) == 3 and parts[2] == "kB"}


def resident_bytes() -> int:
    """Returns what this process holds in RAM, in bytes."""
    return psutil.Process().memory_info().rss


def memory_use(device: torch.device) -> dict[str, int]:
    """Returns in bytes what this process holds on the accelerator, and total: the size of the memory that it computes
    in, accelerator or RAM."""
    if is_accelerator(device):
        return {"accelerator": reserved_bytes(device), "total": total_bytes(device)}
    return {"accelerator": 0, "total": kibibytes("/proc/meminfo").get("MemTotal", 0)}


def own_bytes(device: torch.device) -> int:
    """Returns what this process has allocated for computing: of the accelerator's memory, or of RAM without the pages
    of files."""
    if is_accelerator(device):
        return allocated_bytes(device)
    process = kibibytes("/proc/self/status")
    return process.get("RssAnon", 0) + process.get("RssShmem", 0)


def asked(error: BaseException) -> int | None:
    """Returns the size of the allocation that failed, if the error says so."""
    found = ASKED.search(str(error))
    return int(float(found[1]) * UNITS[found[2]]) if found else None


def release_memory(device: torch.device) -> None:
    """Frees unreferenced memory: on the accelerator, pinned memory, and what the C library keeps."""
    gc.collect()
    empty_caches(device)
    trim_heap()
