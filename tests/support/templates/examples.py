"""What is in example_workflows/, read from `examples.json`: the templates that they are made of, and their files.

Sizes of files are what is known of the pages from which they are downloaded; no file was, to check them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent


class File(NamedTuple):
    """folder: in models. gb: its size, in 10⁹ bytes. url: empty where it is not to be had under this name."""

    folder: str
    name: str
    gb: float
    url: str = ""


class Sampled(NamedTuple):
    """What the figures of memory are of: pixels, frames, and guidance."""

    width: int
    height: int
    length: int
    cfg: float


@dataclass(frozen=True)
class Example:
    """base: the template of ComfyUI's that it is; empty where its graph is drawn here. files: the diffusion model
    first. cards: GiB of each of two, of which the note tells."""

    base: str = ""
    files: tuple[File, ...] = ()
    cards: tuple[int, ...] = (24, 16, 12)
    sampled: Sampled | None = None

    @property
    def model(self) -> File:
        return self.files[0]


def read(entry: Mapping[str, Any]) -> Example:
    parts = {**entry, "files": tuple(File(**each) for each in entry.get("files", ()))}
    if "sampled" in entry:
        parts["sampled"] = Sampled(**entry["sampled"])
    return Example(**parts)


TABLE: Mapping[str, Example] = {
    name: read(entry) for name, entry in json.loads((HERE / "examples.json").read_text()).items()
}
