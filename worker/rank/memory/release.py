"""Memory that a rank no longer needs, given back to the machine."""

from __future__ import annotations

import ctypes
import gc
import sys

import torch

from parallel_backend.device import empty_caches


def release_memory(device: torch.device) -> None:
    """Gives back what nothing refers to any more: on the accelerator, pinned, and in the C library's own keeping."""
    gc.collect()
    empty_caches(device)
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc and hasattr(libc, "malloc_trim"):  # glibc's
        libc.malloc_trim(0)
