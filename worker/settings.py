"""The operator's settings. An environment variable wins over the settings file, and the file over the defaults here."""

from __future__ import annotations

import json
import os
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
MOST_RANKS = 1024
MOST = 10_000_000  # of any other number: no timer takes 1e11 seconds
MAY_BE_ZERO = ("ranks", "restarts", "cpu_ranks")
# Only the file and variables set these, and no page of ComfyUI: they name a program that is started, addresses that are
# trusted, and a folder that is written. Another node pack's script on the page could set them.
NOT_FROM_A_PAGE = ("python", "machines", "measured")


class SettingsError(Explained, ValueError):
    """A setting is unknown, or its value is not allowed."""


@dataclass(frozen=True)
class Settings:
    """The file uses the field names below. An environment variable is PARALLELDIT_ and the name in capitals; it
    separates the parts of a list by commas.

    What each means is said in `locales/en/settings.json`, which ComfyUI's dialog and docs/workers.md show.
    """

    device: str = ""
    gpus: tuple[int, ...] = field(default=())
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
        return cls.of(read_object(file), environment, str(file))

    @classmethod
    def of(cls, given: Mapping[str, Any], environment: Mapping[str, str], source: str) -> Settings:
        """Returns the settings of a file with these values. source: names it. Raises SettingsError."""
        values = {name: convert_value(name, value, source) for name, value in given.items()}
        for setting in fields(cls):
            variable = variable_of(setting.name)
            if environment.get(variable):
                values[setting.name] = convert_value(setting.name, environment[variable], f"the variable {variable}")
        return cls(**values)


def variable_of(name: str) -> str:
    """Returns the environment variable of a setting."""
    return PREFIX + name.upper()


def read_object(file: Path) -> dict[str, Any]:
    """Returns the file's values, unchecked; none without a file. Raises SettingsError."""
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file} cannot be read as JSON ({error}).", "Correct the file or remove it.") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{file} is not a JSON object.", 'Write an object, like {"restarts": 3}.')
    return values


def write_object(file: Path, values: Mapping[str, Any]) -> None:
    """Replaces the file in one step. One thread at a time may call this. Raises SettingsError."""
    file = file.resolve()  # a link stays one
    new = file.with_suffix(f".{os.getpid()}")
    try:
        new.write_text(f"{json.dumps(values, indent=2)}\n")
        new.replace(file)
    except OSError as error:
        raise SettingsError(f"{file} cannot be written ({error}).") from error


def convert_value(name: str, value: Any, source: str) -> Any:
    """Checks a setting's value and converts it to its type. Raises SettingsError."""
    defaults = {setting.name: setting.default for setting in fields(Settings)}
    if name not in defaults:
        raise SettingsError(f"{source} sets {name!r}, which is not a setting. The settings are {', '.join(defaults)}.")
    default = defaults[name]
    kind = {tuple: "a list", str: "text", int: "a whole number"}.get(type(default), "a number")
    kind = "a list of GPUs, each a different whole number" if name == "gpus" else kind
    try:
        if isinstance(default, tuple):
            parts = value.split(",") if isinstance(value, str) else value
            texts = tuple(str(part).strip() for part in parts if str(part).strip())
            result = convert_numbers(texts) if name == "gpus" else texts
        else:
            result = type(default)(value)
        if isinstance(value, bool) or (isinstance(default, int) and isinstance(value, float) and result != value):
            raise ValueError
    except (OverflowError, TypeError, ValueError) as error:
        raise SettingsError(f"{source} sets {name} to {value!r}; it must be {kind}.") from error
    choices = CHOICES.get(name)
    if choices and result not in choices:
        raise SettingsError(f"{source} sets {name} to {value!r}; it must be one of {', '.join(filter(None, choices))}.")
    most = MOST_RANKS if name in ("ranks", "cpu_ranks") else MOST
    if isinstance(result, (int, float)) and result > most:
        raise SettingsError(f"{source} sets {name} to {value!r}; it must be at most {most}.")
    if isinstance(result, (int, float)) and (not result >= 0 or (result == 0 and name not in MAY_BE_ZERO)):
        raise SettingsError(f"{source} sets {name} to {value!r}; it must be more than 0.")
    return result


def convert_numbers(texts: tuple[str, ...]) -> tuple[int, ...]:
    """Converts whole numbers to a list in order. Raises ValueError for others, and if one is there twice."""
    numbers = {int(text) for text in texts if text.isdecimal()}
    if len(numbers) < len(texts):
        raise ValueError
    return tuple(sorted(numbers))
