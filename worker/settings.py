"""The operator's settings. An environment variable wins over the settings file, and the file over the defaults here."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .errors import Explained

PREFIX = "PARALLELDIT_"
FILE_NAME = "paralleldit.json"
DEVICES = ("cpu", "cuda", "xpu")
ON_FREE = ("park", "unload", "keep")
RUN, REFUSE = WHEN_NOT_PARALLEL = ("run", "refuse")
WITH_LOADER, WITH_COMFYUI, WITH_SAMPLER = START = ("loader", "comfyui", "sampler")

CHOICES = {
    "on_free": ON_FREE, "device": ("", *DEVICES), "start": START, "when_not_parallel": WHEN_NOT_PARALLEL,
}  # fmt: skip


class SettingsError(Explained, ValueError):
    """A setting is unknown, or its value is not allowed."""


@dataclass(frozen=True)
class Settings:
    """The file uses the field names below. An environment variable is PARALLELDIT_ and the name in capitals.

    device: cpu, cuda (NVIDIA and AMD GPUs) or xpu (Intel). Empty: the device that ComfyUI computes on.
    ranks: of an automatic plan. 0: one for each GPU that is like ComfyUI's own; 2 on the CPU.
    cpu_ranks: the most CPU ranks that a plan may ask for on a machine. 0: one for each core, at least 2.
    python: the interpreter of the workers.
    machines: the addresses of the machines that work together. This one comes first, with the port where it listens
    for the others. An environment variable separates them by commas.
    on_free: what the workers do when ComfyUI frees memory (its Free button, or other models that need the room). park
    moves the weights to RAM; unload drops them until they are read again; keep does nothing. CPU ranks have no
    accelerator to free: there park means unload.
    restarts: how often a group that dies is restarted within ten minutes; after that it stays down.
    start_seconds: the most seconds until the ranks are ready, on all machines.
    silence_seconds: after so many seconds without a sign of life, a rank counts as dead.
    log_megabytes: the size at which a rank's log is rotated.
    measured: the folder for this machine's measurements. Empty: the pack's own folder.
    when_not_parallel: what happens to a sampling that the ranks cannot run. run: ComfyUI's own model of the same file
    takes it, as stock. refuse: it ends with an error.
    start: when the ranks start. loader: with the first loader of a prompt. comfyui: with ComfyUI, as many as an
    automatic plan has. sampler: when the first sampler needs them.
    """

    device: str = ""
    ranks: int = 0
    python: str = sys.executable
    machines: tuple[str, ...] = field(default=())
    on_free: str = "park"
    restarts: int = 3
    start_seconds: float = 300.0
    silence_seconds: float = 10.0
    log_megabytes: float = 8.0
    cpu_ranks: int = 0
    measured: str = ""
    start: str = WITH_LOADER
    when_not_parallel: str = RUN

    @classmethod
    def read(cls, environment: Mapping[str, str], file: Path) -> Settings:
        """Returns the settings in effect. Raises SettingsError, which names the file or variable that is wrong."""
        values: dict[str, Any] = {}
        if file.is_file():
            values = {name: convert_value(name, value, str(file)) for name, value in read_object(file).items()}
        for setting in fields(cls):
            variable = PREFIX + setting.name.upper()
            if environment.get(variable):
                values[setting.name] = convert_value(setting.name, environment[variable], f"the variable {variable}")
        return cls(**values)


def read_object(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file} cannot be read as JSON ({error}).", "Correct the file or remove it.") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{file} is not a JSON object.", 'Write an object, like {"restarts": 3}.')
    return values


def convert_value(name: str, value: Any, source: str) -> Any:
    """Checks a setting's value and converts it to its type. Raises SettingsError."""
    defaults = {setting.name: setting.default for setting in fields(Settings)}
    if name not in defaults:
        raise SettingsError(f"{source} sets {name!r}, which is not a setting. The settings are {', '.join(defaults)}.")
    default = defaults[name]
    kind = {tuple: "a list", str: "text"}.get(type(default), "a number")
    try:
        if isinstance(default, tuple):
            parts = value.split(",") if isinstance(value, str) else value
            result = tuple(str(part).strip() for part in parts if str(part).strip())
        else:
            result = type(default)(value)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{source} sets {name} to {value!r}; it must be {kind}.") from error
    choices = CHOICES.get(name)
    if choices and result not in choices:
        raise SettingsError(f"{source} sets {name} to {value!r}; it must be one of {', '.join(filter(None, choices))}.")
    if isinstance(result, (int, float)) and (
        not 0 <= result < math.inf or (result == 0 and name not in ("ranks", "restarts", "cpu_ranks"))
    ):
        raise SettingsError(f"{source} sets {name} to {value!r}; it must be more than 0.")
    return result
