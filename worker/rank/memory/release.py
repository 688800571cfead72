"""Memory that a rank no longer needs, given back to the machine."""

from __future__ import annotations

import ctypes
import gc
import sys

import torch


def release_memory(device: torch.device) -> None:
    """Gives back what nothing refers to any more: on the accelerator, pinned, and in the C library's own keeping."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        memory = getattr(torch.accelerator, "memory", None)  # since torch 2.9; older releases keep pinned memory
        getattr(memory, "empty_host_cache", lambda: None)()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc and hasattr(libc, "malloc_trim"):  # glibc's
        libc.malloc_trim(0)
