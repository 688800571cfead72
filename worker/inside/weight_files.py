"""Weights that nodes have read from safetensors files. The ranks read them from the same files, so they need not be
sent. Files that torch has written are pickles, which ranks do not read: their weights are sent.

A weight is found by its numbers, whatever a node has done with the file's tensors: copied them into a module, cast
them, or moved them to a device. So no weight is taken from a file that it differs from.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..wire.file_marks import check_mark, mark_files

LARGE = 1 << 14  # bytes of a weight that is looked for
SAMPLE = 64  # numbers that are compared first
PIECE = 1 << 24  # numbers that are compared at once


class WeightFile:
    """The tensors of a safetensors file, in the file's pages."""

    def __init__(self, path: str) -> None:
        """Raises OSError for a file that cannot be mapped, and ValueError for one that is no safetensors file."""
        self.path, self.mark = path, mark_files([path])
        try:
            self.opened = safe_open(path, "pt")
        except SafetensorError as error:
            raise ValueError(f"{path} has no tensors: {error}") from error
        self.keys = sorted(self.opened.keys())
        self.places: dict[tuple[int, ...], list[int]] = {}
        for place, key in enumerate(self.keys):
            self.places.setdefault(tuple(self.opened.get_slice(key).get_shape()), []).append(place)

    def read(self, place: int) -> torch.Tensor:
        """Raises IndexError."""
        return self.opened.get_tensor(self.keys[place])

    def find(self, tensor: torch.Tensor) -> int | None:
        """Returns the place of a tensor with the same numbers, if they are cast to its dtype."""
        for place in self.places.get(tuple(tensor.shape), ()):
            if are_equal(self.read(place), tensor):
                return place
        return None


class NotedFiles:
    """The files that nodes have read, each with the mark that it had then."""

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}  # by path, the latest last
        self.opened: dict[str, WeightFile | None] = {}

    def note(self, path: str) -> None:
        with suppress(OSError):
            mark = mark_files([path])
            for known in (self.marks, self.opened):
                known.pop(path, None)
            self.marks[path] = mark

    def find(self, weight: torch.Tensor) -> Mapping[str, Any] | None:
        """Returns where a file has the weight, for `OpenFiles.read`; None if no file is known to have it."""
        if weight.nbytes < LARGE:
            return None
        for path in reversed(list(self.marks)):
            file = self.open(path)
            place = file.find(weight) if file else None
            if place is not None:
                self.marks[path] = mark = self.marks.pop(path)  # the next weight is likely of the same file
                return {"path": path, "mark": mark, "place": place, "dtype": str(weight.dtype).removeprefix("torch.")}
        return None

    def open(self, path: str) -> WeightFile | None:
        """Returns None for a file that cannot be mapped, or is another now."""
        if path not in self.opened:
            self.opened[path] = None
            with suppress(OSError, ValueError):
                file = WeightFile(path)
                self.opened[path] = file if file.mark == self.marks[path] else None
        return self.opened[path]

    def close(self) -> None:
        self.opened = {}


class OpenFiles:
    """The files that a rank reads weights from, mapped until `close` is called."""

    def __init__(self) -> None:
        self.opened: dict[str, WeightFile] = {}

    def read(self, path: str, mark: str, place: int, dtype: str) -> torch.Tensor:
        """Returns the weight that `NotedFiles.find` has found, maybe in the file's pages. Raises ModelFileError for a
        file that was overwritten."""
        if path not in self.opened:
            check_mark(path, [path], mark)
            self.opened[path] = WeightFile(path)
        return self.opened[path].read(place).to(getattr(torch, dtype))

    def close(self) -> None:
        self.opened = {}


def are_equal(stored: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a file's tensor, cast to the dtype of another one, has the same numbers. Compares them where that one
    is, a piece at a time."""
    one, other = stored.reshape(-1), tensor.detach().reshape(-1)
    pieces = [slice(0, SAMPLE), *(slice(start, start + PIECE) for start in range(0, len(one), PIECE))]
    return all(bits_of(one[each].to(other.device).to(other.dtype)).equal(bits_of(other[each])) for each in pieces)


def bits_of(row: torch.Tensor) -> torch.Tensor:
    return row.contiguous().view(torch.uint8)
