"""Whether what the workers need beside ComfyUI's own requirements is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from ..errors import NotInstalled

FOLDER = Path(__file__).resolve().parents[2]


def check_installed() -> None:
    """Raises NotInstalled, with the command that installs it, where diffusers is missing."""
    if importlib.util.find_spec("diffusers") is None:
        raise NotInstalled(
            "ParallelDiT needs the diffusers package, which is not installed.",
            f"Run `{sys.executable} -m pip install -r requirements.txt` in the folder {FOLDER} and restart ComfyUI.",
        )
