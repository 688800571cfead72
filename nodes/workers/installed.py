"""Checks that the packages that the workers need in addition to ComfyUI's are installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from ..errors import NotInstalled

FOLDER = Path(__file__).resolve().parents[2]


def check_installed() -> None:
    """Raises NotInstalled, with the install command, if diffusers is missing."""
    if importlib.util.find_spec("diffusers") is None:
        raise NotInstalled(
            "ParallelDiT needs the diffusers package, which is not installed.",
            f"Run `{sys.executable} -m pip install -r requirements.txt` in the folder {FOLDER} and restart ComfyUI.",
        )
