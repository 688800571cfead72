"""Functions of the pack of habits as somebody has read them, on a model of both loaders: their tokens and rows are
shared as the row says, if it is of their text and of how they are set up."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from tests.support.census.patch_rows import NODE
from tests.support.census.rows import Row, equal, habit

REPLACING, REFERENCE, CHUNKED = "replacing.<locals>.replaced", "WithReference", "Chunked"
CHUNKS = "a feed-forward in chunks"


def read(name: str, path: str, *, text: str = "", holds: bool = True, **facts: bool) -> Any:
    """A habit whose function or class has a row. path: its name. text: that was read, if not its own."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        found: Any = importlib.import_module("pack.nodes.inside.pack_facts")
        node = census.nodes.NODE_CLASS_MAPPINGS[NODE]
        functions: Any = sys.modules[node.__module__.replace("patch_habits", "patches")]
        target = functions.replacing(0.7) if path == REPLACING else getattr(functions, path)
        own = found.row(
            "Habit", f"patches:{path}", text or found.hash_text(target, ()), holds=lambda _v: holds, **facts
        )
        (changed,) = census.run(NODE, model=model, habit=name, of=row.model, moment="begin")
        with patch.dict(found.READ, dict([own])):
            return [census.sample(row, changed)]

    return does


def shared(row: Row, plan: str) -> Row:
    return replace(row, shared=plan)


IN_PLACE = "a block in its place"
READ_ROWS: dict[str, Row] = {
    "a block that was read": habit(shared(equal(), "ulysses=2"), read(IN_PLACE, REPLACING, tokens=True, rows=True)),
    "a block that was read, with its rows apart": habit(
        replace(equal(), plan={"cfg": 2}, shared="cfg=2"), read(IN_PLACE, REPLACING, tokens=True, rows=True)
    ),
    "a block of a text that nobody has read": habit(
        shared(equal(), "one rank"), read(IN_PLACE, REPLACING, tokens=True, rows=True, text="another")
    ),
    "a block for which the row does not hold": habit(
        shared(equal(), "one rank"), read(IN_PLACE, REPLACING, tokens=True, rows=True, holds=False)
    ),
    "attention to the text that was read": habit(
        shared(equal("unet"), "ulysses=2"), read("attention to the text in one block", REFERENCE, tokens=True)
    ),
    "a feed-forward that was read": habit(shared(equal("wan"), "ulysses=2"), read(CHUNKS, CHUNKED, tokens=True)),
}
