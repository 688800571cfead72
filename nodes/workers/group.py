"""The worker groups of this ComfyUI, what is set for them, and the devices that they may use."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import threading
from pathlib import Path

import comfy.model_management
import folder_paths
import torch
from server import PromptServer

from ...worker.host.client import WorkerGroup
from ...worker.settings import FILE_NAME, Settings
from ...worker.wire.private_folder import private_folder
from .feed import Feed

CPU_RANKS = 2
GROUPS = 8

_making = threading.Lock()  # prompts and the server's requests come in threads of their own
_made: dict[int, WorkerGroup] = {}


def worker_group(number: int = 1) -> WorkerGroup:
    """A group; its processes start with its first request and end with ComfyUI. number: from 1 to GROUPS.

    Raises SettingsError.
    """
    with _making:
        if number not in _made:
            folder = private_folder(f"group{number}")
            group = _made[number] = WorkerGroup(device_type(), folder, settings())
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            atexit.register(group.stop)  # which runs first
            Feed(number, group, PromptServer.instance).start()
        return _made[number]


def made_groups() -> dict[int, WorkerGroup]:
    """The groups that something has asked for, by number, and the first in any case. Raises SettingsError."""
    worker_group()
    return dict(sorted(_made.items()))


@functools.cache
def settings() -> Settings:
    """Raises SettingsError."""
    return Settings.read(os.environ, Path(folder_paths.get_user_directory()) / FILE_NAME)


def device_type() -> str:
    """What the ranks compute on: as it is set, else "cuda", or "cpu" without a GPU or where ComfyUI runs with --cpu."""
    on_cpu = comfy.model_management.cpu_state == comfy.model_management.CPUState.CPU
    return settings().device or ("cuda" if torch.cuda.is_available() and not on_cpu else "cpu")


def device_count() -> int:
    """How many ranks an automatic plan uses: as it is set, else all GPUs, or 2 CPU ranks, of every machine."""
    here = torch.cuda.device_count() if device_type() == "cuda" else CPU_RANKS
    return settings().ranks or here * max(1, len(settings().machines))


def most_ranks() -> int:
    """How many ranks any plan may ask for, on all machines together: one a GPU, or one a CPU core and 2 at least."""
    if device_type() == "cuda":
        return torch.cuda.device_count() * max(1, len(settings().machines))
    here = settings().cpu_ranks or max(CPU_RANKS, usable_cores())
    return max(device_count(), here * max(1, len(settings().machines)))


def usable_cores() -> int:
    """The CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
