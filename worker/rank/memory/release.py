"""Frees memory that nothing in a rank refers to."""

from __future__ import annotations

import ctypes
import gc
import sys

import torch

from parallel_backend.device import empty_caches


def release_memory(device: torch.device) -> None:
    """Frees unreferenced memory: on the accelerator, pinned memory, and what the C library keeps."""
    gc.collect()
    empty_caches(device)
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc and hasattr(libc, "malloc_trim"):  # glibc has it
        libc.malloc_trim(0)
