"""Frees memory that nothing in a rank refers to."""

from __future__ import annotations

import gc

import torch

from parallel_backend.device import empty_caches, trim_heap


def release_memory(device: torch.device) -> None:
    """Frees unreferenced memory: on the accelerator, pinned memory, and what the C library keeps."""
    gc.collect()
    empty_caches(device)
    trim_heap()
