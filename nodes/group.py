"""The one worker group of this ComfyUI, and the devices that it may use."""

from __future__ import annotations

import atexit
import functools
from pathlib import Path

import comfy.model_management
import folder_paths
import torch

from ..worker.client import WorkerGroup

DEFAULT_CPU_RANKS = 2


@functools.cache
def worker_group() -> WorkerGroup:
    """The group; its processes start with the first request and end with ComfyUI."""
    group = WorkerGroup(device_type(), Path(folder_paths.get_temp_directory()) / "paralleldit-workers")
    atexit.register(group.stop)
    return group


def device_type() -> str:
    """What the ranks compute on: "cuda", or "cpu" where there is no GPU or ComfyUI was started with --cpu."""
    on_cpu = comfy.model_management.cpu_state == comfy.model_management.CPUState.CPU
    return "cuda" if torch.cuda.is_available() and not on_cpu else "cpu"


def device_count() -> int:
    """How many ranks an automatic plan uses: all GPUs, or 2 CPU ranks where there is none."""
    return torch.cuda.device_count() if device_type() == "cuda" else DEFAULT_CPU_RANKS
