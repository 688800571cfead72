"""What is in example_workflows/, read from `examples.json`: the templates, their files, and what their notes say.

Sizes of files are what is known of the pages from which they are downloaded; no file was, to check them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent


class File(NamedTuple):
    """folder: in models. gb: its size, in 10⁹ bytes. url: empty where it is not to be had under this name."""

    folder: str
    name: str
    gb: float
    url: str = ""


class Words(NamedTuple):
    en: str
    zh: str


class Sampled(NamedTuple):
    """What the figures of memory are of: pixels, frames, and guidance."""

    width: int
    height: int
    length: int
    cfg: float


@dataclass(frozen=True)
class Example:
    """base: the template of ComfyUI's that it is; empty where its graph is drawn here. values, links: what is otherwise
    in it, see `stock_graph.settled`. names: of files, to what is taken in their place.

    note: where it is: left, top, width and height; empty for below the nodes.

    files: the diffusion model first. cards: GiB of each of two, of which the note tells. counted: what `sampled` stands
    for, where it is not what the words of it say.
    """

    title: str
    tips: Words
    base: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, str | None] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    note: tuple[int, ...] = ()
    files: tuple[File, ...] = ()
    cards: tuple[int, ...] = (24, 16, 12)
    sampled: Sampled | None = None
    counted: Words | None = None
    licence: Words | None = None

    @property
    def model(self) -> File:
        return self.files[0]


KINDS = {"tips": Words, "counted": Words, "licence": Words, "sampled": Sampled}


def read(entry: Mapping[str, Any]) -> Example:
    parts: dict[str, Any] = {name: KINDS[name](**value) if name in KINDS else value for name, value in entry.items()}
    return Example(**{**parts, "files": tuple(File(**each) for each in entry.get("files", ()))})


TABLE: Mapping[str, Example] = {
    name: read(entry) for name, entry in json.loads((HERE / "examples.json").read_text()).items()
}
