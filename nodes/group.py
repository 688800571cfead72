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

from ..worker.client import WorkerGroup
from ..worker.folder import private_folder
from ..worker.settings import FILE_NAME, Settings

CPU_RANKS = 2
GROUPS = 8

_making = threading.Lock()  # prompts and the server's requests come in threads of their own


def worker_group(number: int = 1) -> WorkerGroup:
    """A group; its processes start with its first request and end with ComfyUI. number: from 1 to GROUPS."""
    with _making:
        return _worker_group(number)


@functools.cache
def _worker_group(number: int) -> WorkerGroup:
    folder = private_folder(f"group{number}")
    group = WorkerGroup(device_type(), folder, settings())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(group.stop)  # which runs first
    return group


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
