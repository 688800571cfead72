"""Tells a file from one that overwrites it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import ModelFileError

PIECES, PIECE_BYTES = 8, 4096  # of a file, for its mark
TICK = 2  # seconds, the coarsest times that file systems keep


def mark_files(files: Sequence[str | Path]) -> str:
    """Returns what tells files from others of the same names: a hash of their sizes and of pieces of them, and one of
    the times at which they were written. Copies on other machines have the same first hash. Raises OSError for a file
    that is not there."""
    contents, times = hashlib.sha256(), []
    for path in files:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            contents.update(f"{size} ".encode())
            for index in range(PIECES):
                file.seek(index * max(0, size - PIECE_BYTES) // (PIECES - 1))
                contents.update(file.read(PIECE_BYTES))
            times.append(int(os.fstat(file.fileno()).st_mtime) // TICK)
    return f"{contents.hexdigest()[:16]}-{hashlib.sha256(repr(times).encode()).hexdigest()[:8]}"


def check_mark(name: str | Path, files: Sequence[str | Path], mark: str) -> None:
    """Raises ModelFileError for files that were overwritten or removed since ComfyUI loaded them. name: of them all. On
    other machines than ComfyUI's, the times at which they were written say nothing."""
    length = len(mark) if os.environ.get("GROUP_RANK", "0") == "0" else mark.find("-")
    try:
        is_same = mark_files(files)[:length] == mark[:length]
    except OSError as error:
        raise ModelFileError(f"{name} cannot be read: {error.strerror}.", "Put it back, or choose another.") from error
    if not is_same:
        raise ModelFileError(
            f"{name} was overwritten after it was loaded, and is another model now.",
            "Empty ComfyUI's cache (*Free model and node cache*), and queue the prompt again.",
        )
