"""The worker groups of this ComfyUI, their settings, and the devices that they may use."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import comfy.model_management
import folder_paths
from server import PromptServer

from ...parallel_backend.device import CPU, Card, cards, check_kind, count, group_backends, in_rank_order, like_first
from ...parallel_backend.errors import Explanation, RequestError
from ...worker.errors import RequestRefused
from ...worker.host.client import WorkerGroup
from ...worker.host.supervision import Setup
from ...worker.launch import torchrun
from ...worker.settings import FILE_NAME, Settings, SettingsError, read_object, write_object
from ...worker.wire.private_folder import private_folder
from ..errors import Refused
from .feed import Feed

CPU_RANKS = 2
GROUPS = 8
STOPPED = "stopped"  # the phase of a group without processes

FOLDER = Path(__file__).resolve().parents[2]

_lock = threading.Lock()  # prompts and the server's requests run in different threads
_groups: dict[int, WorkerGroup] = {}
_removed: set[int] = set()  # numbers of groups that a person has removed, until they run again


def worker_group(number: int = 1) -> WorkerGroup:
    """Returns a group. Its processes start with its first request and end with ComfyUI. number: 1 to GROUPS. Raises
    SettingsError."""
    with _lock:
        if number not in _groups:
            why, folder = why_no_group(number=number), group_folder(number)[0]
            group = _groups[number] = WorkerGroup(device_type(), folder, settings(), why)
            atexit.register(group.stop)
            Feed(number, group, PromptServer.instance).start()
        return _groups[number]


@functools.cache
def group_folder(number: int) -> tuple[Path, Explanation | None]:
    """Returns the folder for a group's logs and sockets, and why there is none, if so."""
    try:
        return private_folder(f"group{number}"), None
    except OSError as error:
        return Path(), Explanation(
            f"The folder for temporary files cannot be used ({error}).",
            "Set TMPDIR to another folder, and restart ComfyUI.",
        )


def list_groups() -> dict[int, WorkerGroup]:
    """Returns the groups created so far, by number, and always the first, without those that were removed. Raises
    SettingsError."""
    worker_group()
    _removed.difference_update([number for number in _removed if _groups[number].phase != STOPPED])
    return {number: group for number, group in sorted(_groups.items()) if number not in _removed}


def remove_group(group: WorkerGroup) -> None:
    """Leaves a stopped group out of `list_groups` until it runs again. Raises RequestRefused for another, and for the
    first."""
    number = next(number for number, each in _groups.items() if each is group)
    if number == 1 or group.phase != STOPPED:
        raise RequestRefused(
            f"Worker group {number} cannot be removed.", "Stop it first. The first group always stays."
        )
    _removed.add(number)


def is_second_group(number: int) -> bool:
    """Whether this group was not used yet, while another one runs. It loads a copy of its model."""
    return (number not in _groups or number in _removed) and any(group.session for group in _groups.values())


def list_outdated() -> list[int]:
    """Returns the numbers of the groups that run with older settings."""
    return [number for number, group in sorted(_groups.items()) if group.coming]


def last_status(number: int) -> dict[str, Any]:
    """Returns what a group's ranks last reported, see `Executor.status`. Empty if none run. It asks them nothing."""
    session = _groups[number].session if number in _groups else None
    return session.last_status if session else {}


@functools.cache
def settings() -> Settings:
    """Returns the settings. Raises SettingsError."""
    return Settings.read(os.environ, settings_file())


def measured_folder() -> Path:
    """Returns where this machine's measurements are kept. Raises SettingsError."""
    return Path(settings().measured or FOLDER / "measured")


def settings_file() -> Path:
    return Path(folder_paths.get_user_directory()) / FILE_NAME


def change_settings(changes: Mapping[str, Any]) -> None:
    """Changes values of the settings file. None removes one. Groups that run take them when they are restarted.

    Raises SettingsError, and then nothing has changed.
    """
    with _lock:
        file = settings_file()
        values = {name: value for name, value in {**read_object(file), **changes}.items() if value is not None}
        split_cards(Settings.of(values, os.environ, str(file)))  # which checks the devices
        write_object(file, values)
    reload_settings()


def reload_settings() -> None:
    """Reads the settings again. Groups that run take them when they are restarted.

    Raises SettingsError, and then nothing has changed.
    """
    with _lock:
        found = Settings.read(os.environ, settings_file())
        split_cards(found)
        settings.cache_clear()
        for number, group in _groups.items():
            group.configure(Setup(device_type(found), found, why_no_group(found, number)))


def wanted_device(given: Settings | None = None) -> str:
    """Returns the kind of device that the ranks should compute on: from the settings, else ComfyUI's own kind.

    given: in place of the settings in effect. Raises SettingsError if it is set and this machine has none.
    """
    set_to, management = (given or settings()).device, comfy.model_management
    if set_to not in ("", CPU) and not count(set_to):
        raise SettingsError(
            f"The setting device is {set_to}, and torch finds none here.", "Take it out of the settings."
        )
    on_cpu = management.cpu_state == management.CPUState.CPU
    return set_to or (CPU if on_cpu else management.get_torch_device().type)


def why_no_group(given: Settings | None = None, number: int = 1) -> Explanation | None:
    """Says why this system can have no worker group, so that every model runs as stock; None if it can have one.

    given: as in `wanted_device`. number: of the group. Raises SettingsError.
    """
    if sys.platform == "win32":
        return Explanation(
            "On Windows, torch cannot connect the processes of a worker group.",
            "Run ComfyUI in WSL2 to use several GPUs.",
        )
    try:
        kind = check_kind(wanted_device(given))
        if (given or settings()).python == sys.executable:  # the ranks have this torch
            group_backends(kind)
    except RequestError as error:
        return error.explanation
    return group_folder(number)[1]


def device_type(given: Settings | None = None) -> str:
    """Returns the kind of device that the ranks compute on. It is the CPU if there can be none. Raises SettingsError
    if one is set that this machine does not have. given: as in `wanted_device`."""
    return CPU if why_no_group(given) else wanted_device(given)


def all_cards(given: Settings | None = None) -> list[Card]:
    """Returns this machine's cards of the ranks' kind, in torch's order. Empty on the CPU. Raises SettingsError."""
    kind = device_type(given)
    return [] if kind == CPU else cards(kind)


def split_cards(given: Settings | None = None) -> tuple[list[Card], list[Card]]:
    """Returns an automatic plan's GPUs, and those that only a manual plan may use: without a choice in the settings,
    those that differ from ComfyUI's own. None on the CPU. given: as in `wanted_device`. Raises SettingsError."""
    given, found = given or settings(), all_cards(given)
    if not given.gpus:
        return like_first(found)
    if not why_no_group(given):
        check_gpus(given, found)
    return in_rank_order(found, given.gpus), []


def check_gpus(given: Settings, found: list[Card]) -> None:
    """Checks the chosen GPUs. found: this machine's. Raises SettingsError."""
    if given.machines:
        raise SettingsError(
            "The setting gpus chooses GPUs of one machine, and machines names several.", "Set only one of them."
        )
    if not found:
        raise SettingsError(
            "The setting gpus chooses GPUs, but the ranks compute on the CPU.", "Take it out of the settings."
        )
    missing = [str(number) for number in given.gpus if number not in {card.index for card in found}]
    if missing:
        there, present = " and ".join(missing), ", ".join(map(str, found))
        raise SettingsError(
            f"The setting gpus has GPU {there}, but this machine has only {present}.", "Choose among these."
        )
    if given.ranks > len(given.gpus):
        raise SettingsError(
            f"The setting ranks is {given.ranks}, and gpus has only {len(given.gpus)}.", "Lower ranks, or add GPUs."
        )


def list_cards() -> list[Card]:
    """Returns the cards that plans may use, in the ranks' order. Empty on the CPU."""
    alike, others = split_cards()
    return [*alike, *others]


def device_count() -> int:
    """Returns how many ranks an automatic plan uses: as set, else one for each of its GPUs, or 2 CPU ranks, of every
    machine; at most `most_ranks`. It is 1 if there can be no group.
    """
    if why_no_group():
        return 1
    here = len(split_cards()[0]) or CPU_RANKS
    return min(settings().ranks or here * max(1, len(settings().machines)), most_ranks())


def most_ranks() -> int:
    """Returns the most ranks of any plan, on all machines together: one per GPU, or one per CPU core and at least 2."""
    if device_type() != CPU:
        return len(list_cards()) * max(1, len(settings().machines))
    return (settings().cpu_ranks or count_cores()) * max(1, len(settings().machines))


def count_cores() -> int:
    """Returns how many cores this process may use, but at least CPU_RANKS."""
    return max(CPU_RANKS, torchrun.count_cores())


def check_installed() -> None:
    """Raises Refused, with the install command, if diffusers is missing."""
    if importlib.util.find_spec("diffusers") is None:
        raise Refused(
            "ParallelDiT needs the diffusers package, which is not installed.",
            f"Run `{sys.executable} -m pip install -r requirements.txt` in the folder {FOLDER} and restart ComfyUI.",
        )
