"""Measures a rank's memory: its size, its use, and the size of an allocation that failed (OOM). Frees what is
unused."""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass

import psutil
import torch

from parallel_backend.device import (
    allocated_bytes,
    available_device_bytes,
    empty_caches,
    is_accelerator,
    reserved_bytes,
    total_bytes,
    trim_heap,
)
from parallel_backend.weights.free_ram import available_ram_bytes

# The messages of torch's own allocator, and of CUDA's (cudaMallocAsync).
ASKED = re.compile(r"(?:[Tt]r(?:ied|y) to allocate|Requested +:) ([\d.]+) ?(bytes|KiB|MiB|GiB|TiB)")
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True)
class DeviceMemory:
    """The memory that a rank computes in, in bytes.

    used: by this rank.
    free: what it can still get.
    total: for all processes.
    """

    total: int
    used: int
    free: int

    @classmethod
    def now(cls, device: torch.device) -> DeviceMemory:
        if is_accelerator(device):
            return cls(total_bytes(device), allocated_bytes(device), available_device_bytes(device))
        return cls(psutil.virtual_memory().total, process_ram_bytes(), available_ram_bytes())


def process_ram_bytes() -> int:
    """Returns what this process holds in RAM, in bytes."""
    return psutil.Process().memory_info().rss


def memory_use(device: torch.device) -> dict[str, int]:
    """Returns in bytes what this process holds on the accelerator, and total: the size of the memory that it computes
    in, accelerator or RAM."""
    if is_accelerator(device):
        return {"accelerator": reserved_bytes(device), "total": total_bytes(device)}
    return {"accelerator": 0, "total": psutil.virtual_memory().total}


def own_bytes(device: torch.device) -> int:
    """Returns what this process has allocated for computing: of the accelerator's memory, or of RAM without what it
    shares, such as the pages of files."""
    if is_accelerator(device):
        return allocated_bytes(device)
    memory = psutil.Process().memory_info()
    return memory.rss - memory.shared


def asked(error: BaseException) -> int | None:
    """Returns the size of the allocation that failed, if the error says so."""
    found = ASKED.search(str(error))
    return int(float(found[1]) * UNITS[found[2]]) if found else None


def release_memory(device: torch.device) -> None:
    """Frees unreferenced memory: on the accelerator, pinned memory, and what the C library keeps."""
    gc.collect()
    empty_caches(device)
    trim_heap()
