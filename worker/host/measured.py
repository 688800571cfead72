"""What was measured of this machine, kept in a folder from one start to the next: a file for each set of devices.

A file is for the devices that it names, in this order, and the versions of what measured them. One of others, or one
that is damaged, counts as none, so that it is measured again. In one that says "fixed": true, by an operator's hand,
predictions stay as they are: steps do not correct them.
"""

from __future__ import annotations

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

CPU_FACTS = Path("/proc/cpuinfo")
VERSION = 1  # of what a file says
Figures = dict[str, Any]


class MeasuredFile:
    """figures: of devices and links, as the ranks measured them; none before. steps: by model and size, what steps took
    against what was predicted. problem: why a file that is there counts for nothing.

    Methods may be called by any thread.
    """

    def __init__(self, folder: Path, devices: Sequence[str], dtype: str) -> None:
        """devices: of each rank in turn, as a person knows it."""
        self.made_of = {"version": VERSION, "devices": [*devices], "dtype": dtype, "torch": torch.__version__}
        key = hashlib.sha256(json.dumps([self.made_of["devices"], dtype]).encode()).hexdigest()[:16]
        self.path = folder / f"{key}.json"
        self.figures: Figures | None = None
        self.steps: dict[str, Figures] = {}
        self.problem, self.is_fixed = "", False
        self.lock = threading.Lock()
        self._read()

    def _read(self) -> None:
        try:
            held = json.loads(self.path.read_text("utf-8"))
            if held["made_of"] != self.made_of:
                raise ValueError("it is of other devices or versions")
            figures, steps = held["figures"], held["steps"]
            if not isinstance(figures, dict) or not isinstance(steps, dict):
                raise ValueError("it holds no figures")
            self.figures, self.steps, self.is_fixed = figures, steps, held.get("fixed") is True
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.refuse(str(error) or type(error).__name__)

    def refuse(self, reason: str) -> None:
        """What it holds counts for nothing."""
        self.figures, self.problem = None, f"{self.path} counts for nothing ({reason}): it is measured again."
        logging.warning("[ParallelDiT] %s", self.problem)

    def keep(self, figures: Figures) -> None:
        """What was measured just now, in place of all before."""
        with self.lock:
            self.figures, self.steps, self.problem = figures, {}, ""
            self._write()

    def note(self, key: str, step: Figures) -> None:
        """What a step took, see `steps`."""
        with self.lock:
            if not self.is_fixed and self.steps.get(key) != step:
                self.steps[key] = step
                self._write()

    def _write(self) -> None:
        held = {"made_of": self.made_of, "figures": self.figures, "steps": self.steps}
        new = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(held, indent=1), "utf-8")
            new.replace(self.path)
        except OSError as error:  # it lasts until ComfyUI ends
            logging.warning("[ParallelDiT] what was measured cannot be kept in %s: %s", self.path.parent, error)


def cpu_name() -> str:
    """What this machine's CPU ranks compute on, and with how many cores."""
    name = platform.processor() or platform.machine()
    if CPU_FACTS.is_file():
        lines = (line.partition(":") for line in CPU_FACTS.read_text(errors="replace").splitlines())
        name = next((value.strip() for key, _, value in lines if key.strip() == "model name"), name)
    return f"{name}, {os.cpu_count()} cores"
