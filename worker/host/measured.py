"""Keeps this machine's measurements in a folder between starts: one file for each set of devices.

A file holds for the devices that it names, in this order, and for the versions that it names. A damaged file, or one
for other devices or versions, is ignored, and the machine is measured again. An operator may add "fixed": true to a
file: then what steps take is not kept, so auto stays with what it predicts.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..settings import SettingsError, write_object

CPU_FACTS = Path("/proc/cpuinfo")
VERSION = 5  # of the figures' meaning
Figures = dict[str, Any]


class MeasuredFile:
    """One file of measurements.

    figures: of devices and links, as the ranks measured them; None before. steps: by model and size, what steps of each
    plan took. Any thread may call any method.
    """

    def __init__(self, folder: Path, devices: Sequence[str], dtype: str) -> None:
        """devices: the name of each rank's device, in order. dtype: of the computing; empty for what holds for all."""
        self.made_of = {"version": VERSION, "devices": [*devices], "dtype": dtype, "torch": torch.__version__}
        key = hashlib.sha256(json.dumps([self.made_of["devices"], dtype]).encode()).hexdigest()[:16]
        self.path = folder / f"{key}.json"
        self.figures: Figures | None = None
        self.steps: dict[str, Figures] = {}
        self.is_fixed = False
        self.lock = threading.Lock()
        self._read()

    def _read(self) -> None:
        try:
            saved = json.loads(self.path.read_text("utf-8"))
            if saved["made_of"] != self.made_of:
                raise ValueError("it is for other devices or versions")
            figures, steps = saved["figures"], saved["steps"]
            if not isinstance(figures, dict) or not isinstance(steps, dict):
                raise ValueError("it holds no figures")
            self.figures, self.steps = figures, steps
            self.is_fixed = saved.get("fixed") is True
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.refuse(str(error) or type(error).__name__)

    def refuse(self, reason: str) -> None:
        """Ignores the file's figures from now on."""
        self.figures = None
        logging.warning("[ParallelDiT] %s is ignored (%s): this machine is measured again.", self.path, reason)

    def keep(self, figures: Figures) -> None:
        """Keeps new measurements. If the figures differ from those before, the steps are forgotten."""
        with self.lock:
            if figures != self.figures:
                self.steps = {}
            self.figures = figures
            self._write()

    def note(self, key: str, step: Figures) -> None:
        """Notes what a step took, see `steps`."""
        with self.lock:
            if not self.is_fixed and self.steps.get(key) != step:
                self.steps[key] = step
                self._write()

    def _write(self) -> None:
        saved = {"made_of": self.made_of, "figures": self.figures, "steps": self.steps}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_object(self.path, saved)
        except (OSError, SettingsError) as error:  # the figures in memory last until ComfyUI ends
            warn_unsaved(self.path.parent, str(error))


@functools.cache
def warn_unsaved(folder: Path, error: str) -> None:
    """Says once why measurements are not saved."""
    logging.warning(
        "[ParallelDiT] the measurements cannot be saved in %s: %s. The setting `measured` names another folder.",
        folder,
        error,
    )


measured_file = functools.cache(MeasuredFile)  # so that all who use a file share its figures


@functools.cache
def cpu_name() -> str:
    """Returns the name of this machine's CPU and the number of its cores."""
    name = platform.processor() or platform.machine()
    if CPU_FACTS.is_file():
        lines = (line.partition(":") for line in CPU_FACTS.read_text(errors="replace").splitlines())
        name = next((value.strip() for key, _, value in lines if key.strip() == "model name"), name)
    return f"{name}, {os.cpu_count()} cores"
