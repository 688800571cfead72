"""Folders that are this process's own: 0700, and removed by another one's care if it is killed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import psutil

PREFIX = "paralleldit"
NAME = re.compile(rf"{PREFIX}-(\d+)-")


def private_folder(purpose: str) -> Path:
    """A new folder, for the caller to remove. Those of processes that were killed are removed first."""
    remove_leftovers()
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-{purpose}-"))


def remove_leftovers() -> None:
    """Removes the folders of processes that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*"):
        owner = NAME.match(folder.name)
        if owner and not psutil.pid_exists(int(owner[1])):
            shutil.rmtree(folder, ignore_errors=True)
