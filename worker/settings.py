"""What an operator can set: by environment variables, by a settings file, else the defaults here, in this order."""

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
WITH_LOADER, WITH_COMFYUI, WITH_SAMPLER = START = ("loader", "comfyui", "sampler")


class SettingsError(Explained, ValueError):
    """A setting that is unknown or has a value that it cannot have."""


@dataclass(frozen=True)
class Settings:
    """An environment variable is PARALLELDIT_ and the field's name in capitals; in the file, it is the name as it is.

    device: cpu, cuda (NVIDIA's and AMD's GPUs) or xpu (Intel's); empty for what ComfyUI computes on.
    ranks: of an automatic plan; 0 for all GPUs that are like ComfyUI's own, 2 on the CPU.
    cpu_ranks: how many CPU ranks a plan may ask for on a machine; 0 for as many as it has cores, 2 at least.
    python: the interpreter of the workers. machines: the addresses of the machines that work together, this one first
    and with the port at which the others meet it; in an environment variable, with commas between them.
    on_free: what ComfyUI's Free, or other models that need the room, do to the workers: park has the weights wait in
    RAM, unload lets them go until they are read again, keep does nothing. On the CPU, where there is no accelerator to
    free, park is unload.
    restarts: how many in ten minutes, before a group that keeps dying is left down. start_seconds: for the ranks to be
    up, other machines' included. silence_seconds: after which a rank that gives no sign of life is taken for dead.
    log_megabytes: of one rank's log, before it is rotated.
    measured: the folder that keeps what was measured of this machine; empty for the pack's own.
    start: when the ranks start: with the first loader that a prompt runs; with comfyui, those of an automatic plan; or
    with the first sampler, once it needs them.
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

    @classmethod
    def read(cls, environment: Mapping[str, str], file: Path) -> Settings:
        """The settings in effect. Raises SettingsError, which names the source of what is wrong."""
        values: dict[str, Any] = {}
        if file.is_file():
            values = {name: checked(name, value, str(file)) for name, value in read_object(file).items()}
        for setting in fields(cls):
            variable = PREFIX + setting.name.upper()
            if environment.get(variable):
                values[setting.name] = checked(setting.name, environment[variable], f"the variable {variable}")
        return cls(**values)


def read_object(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file} cannot be read as JSON ({error}).", "Mend it or take it away.") from error
    if not isinstance(values, dict):
        raise SettingsError(f'{file} holds no JSON object, like {{"restarts": 3}}.')
    return values


def checked(name: str, value: Any, source: str) -> Any:
    """A setting's value in its type. Raises SettingsError."""
    defaults = {setting.name: setting.default for setting in fields(Settings)}
    if name not in defaults:
        raise SettingsError(f"{source} sets {name!r}, which is none of {', '.join(defaults)}.")
    default = defaults[name]
    kind = {tuple: "a list", str: "text"}.get(type(default), "a number")
    try:
        if isinstance(default, tuple):
            parts = value.split(",") if isinstance(value, str) else value
            result = tuple(str(part).strip() for part in parts if str(part).strip())
        else:
            result = type(default)(value)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{source} sets {name} to {value!r}; it takes {kind}.") from error
    choices = {"on_free": ON_FREE, "device": ("", *DEVICES), "start": START}.get(name)
    if choices and result not in choices:
        raise SettingsError(f"{source} sets {name} to {value!r}; it is one of {', '.join(filter(None, choices))}.")
    if isinstance(result, (int, float)) and (
        not 0 <= result < math.inf or (result == 0 and name not in ("ranks", "restarts", "cpu_ranks"))
    ):
        raise SettingsError(f"{source} sets {name} to {value!r}; it is more than 0.")
    return result
