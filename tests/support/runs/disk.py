"""What a run writes to the disk: a test file's part goes with it."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from shutil import rmtree  # as they are now: tests replace shutil's

import pytest


class TemporaryFolders:
    """Those of the session stay until its end, those of a test file until its own.

    A folder is emptied and not removed. pytest would give its name again, by which a worker group or ComfyUI may know
    another model; and ComfyUI lists no models of a kind whose folders it has seen and no longer finds.
    """

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory = factory
        self.settled: set[str] = set()  # the names of those that are emptied, or stay as they are
        self.shared: dict[Path, set[Path]] = {}

    def lasting(self, name: str) -> Path:
        """A new folder that stays."""
        folder = self.factory.mktemp(name)
        self.settled.add(folder.name)
        return folder

    def share(self, folder: Path) -> None:
        """What is in a lasting folder now stays; what a test file adds to it goes with that file."""
        self.shared[folder] = set(folder.rglob("*"))

    def end_file(self, failed: bool) -> None:
        """Removes what a test file has written. If one of its tests failed, it all stays."""
        new = [entry for entry in os.scandir(self.factory.getbasetemp()) if entry.name not in self.settled]
        self.settled.update(entry.name for entry in new)
        added = {folder: set(folder.rglob("*")) - first for folder, first in self.shared.items()}
        if failed:
            for folder, paths in added.items():
                self.shared[folder] |= paths
            return
        # A process that ends late may still write.
        for path in (Path(entry) for entry in new if entry.is_dir(follow_symlinks=False)):
            rmtree(path, ignore_errors=True)
            path.mkdir(exist_ok=True)
        for path in chain.from_iterable(added.values()):
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
