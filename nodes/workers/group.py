"""The worker groups of this ComfyUI, their settings, and the devices that they may use."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from pathlib import Path
from typing import Any

import comfy.model_management
import folder_paths
from server import PromptServer

from ...parallel_backend.device import CPU, Card, cards, check_kind, count, group_backends, like_first
from ...parallel_backend.errors import Explanation, RequestError
from ...worker.host.client import WorkerGroup
from ...worker.settings import FILE_NAME, Settings, SettingsError
from ...worker.wire.private_folder import private_folder
from .feed import Feed

CPU_RANKS = 2
GROUPS = 8

_lock = threading.Lock()  # prompts and the server's requests run in different threads
_groups: dict[int, WorkerGroup] = {}


def worker_group(number: int = 1) -> WorkerGroup:
    """Returns a group. Its processes start with its first request and end with ComfyUI. number: 1 to GROUPS.

    Raises SettingsError.
    """
    with _lock:
        if number not in _groups:
            folder = private_folder(f"group{number}")
            group = _groups[number] = WorkerGroup(device_type(), folder, settings(), why_no_group())
            atexit.register(group.stop)
            Feed(number, group, PromptServer.instance).start()
        return _groups[number]


def list_groups() -> dict[int, WorkerGroup]:
    """Returns the groups created so far, by number, and always the first. Raises SettingsError."""
    worker_group()
    return dict(sorted(_groups.items()))


def reported_weights(number: int) -> dict[str, Any]:
    """Returns where a group's ranks reported that their weights are kept. Empty if they reported nothing."""
    group = _groups.get(number)
    return (group.status().get("weights") or {}) if group else {}


@functools.cache
def settings() -> Settings:
    """Returns the settings. Raises SettingsError."""
    return Settings.read(os.environ, Path(folder_paths.get_user_directory()) / FILE_NAME)


def wanted_device() -> str:
    """Returns the kind of device that the ranks should compute on: from the settings, else ComfyUI's own kind.

    Raises SettingsError if it is set and this machine has none.
    """
    set_to, management = settings().device, comfy.model_management
    if set_to not in ("", CPU) and not count(set_to):
        raise SettingsError(
            f"The setting device is {set_to}, and torch finds none here.", "Take it out of the settings."
        )
    on_cpu = management.cpu_state == management.CPUState.CPU
    return set_to or (CPU if on_cpu else management.get_torch_device().type)


def why_no_group() -> Explanation | None:
    """Says why this system can have no worker group, so that every model runs as stock; None if it can have one.

    Raises SettingsError.
    """
    if sys.platform == "win32":
        return Explanation(
            "On Windows, torch cannot connect the processes of a worker group.",
            "Run ComfyUI in WSL2 to use several GPUs.",
        )
    try:
        kind = check_kind(wanted_device())
        if settings().python == sys.executable:  # the ranks have this torch
            group_backends(kind)
    except RequestError as error:
        return error.explanation
    return None


def device_type() -> str:
    """Returns the kind of device that the ranks compute on. It is the CPU if there can be none. Raises SettingsError
    if one is set that this machine does not have."""
    return CPU if why_no_group() else wanted_device()


def split_cards() -> tuple[list[Card], list[Card]]:
    """Returns an automatic plan's GPUs (ComfyUI's own and those like it), and the other GPUs. None on the CPU."""
    kind = device_type()
    return ([], []) if kind == CPU else like_first(cards(kind))


def list_cards() -> list[Card]:
    """Returns this machine's cards in the ranks' order: first ComfyUI's own and those like it. Empty on the CPU."""
    alike, others = split_cards()
    return [*alike, *others]


def device_count() -> int:
    """Returns how many ranks an automatic plan uses: as set, else ComfyUI's own GPU and those like it, or 2 CPU ranks,
    of every machine. It is 1 if there can be no group.
    """
    if why_no_group():
        return 1
    here = len(split_cards()[0]) or CPU_RANKS
    return settings().ranks or here * max(1, len(settings().machines))


def most_ranks() -> int:
    """Returns the most ranks of any plan, on all machines together: one per GPU, or one per CPU core and at least 2."""
    if (kind := device_type()) != CPU:
        return count(kind) * max(1, len(settings().machines))
    here = settings().cpu_ranks or max(CPU_RANKS, count_cores())
    return max(device_count(), here * max(1, len(settings().machines)))


def count_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
