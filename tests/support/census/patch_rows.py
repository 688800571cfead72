"""What node packs put at ComfyUI's places for functions, as stock and in the ranks. How a function comes to the ranks
does not depend on its place, so models, moments and plans take turns. And some of these functions as somebody has read
them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from tests.support.census.changes import sample_after
from tests.support.census.rows import Row, equal, habit

NODE = "PatchHabit"
# By habit: the model, the moment, the plan (none is auto) and the plan that runs. Around blocks, and at some places of
# a UNet, the ranks can have all tokens.
PATCHES: dict[str, tuple[str, str, dict[str, int], str]] = {
    "before attention": ("flux", "begin", {}, "one rank"),
    "before attention to the text": ("unet", "sampling", {"ulysses": 2}, "ulysses=2"),
    "a text that is written over": ("unet", "sampling", {"ulysses": 2}, "ulysses=2"),
    "behind attention": ("flux", "call", {"cfg": 2}, "one rank"),
    "attention to the text in one block": ("unet", "begin", {"cfg": 2}, "ulysses=2"),
    "other places of a UNet": ("unet", "begin", {}, "one rank"),
    "fewer pixels in the depth": ("unet", "begin", {"ulysses": 2}, "one rank"),
    "a block that is skipped": ("sd3-dual", "call", {}, "ulysses=2"),
    "a block in its place": ("wan", "inside", {"ulysses": 2}, "ulysses=2"),
    "a single block in its place": ("flux", "begin", {}, "ulysses=2"),
    "behind each block": ("wan", "sampling", {"ulysses": 2}, "ulysses=2"),
    "a feed-forward in chunks": ("zimage", "inside", {}, "one rank"),
    "attention in windows": ("unet", "callback", {"ulysses": 2}, "one rank"),
    "attention to an image in a region": ("unet", "begin", {"cfg": 2}, "ulysses=2"),
}


def patched(name: str, moment: str) -> Callable[..., list[torch.Tensor]]:
    """A habit at a moment, and the model without it after that."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        (changed,) = census.run(NODE, model=model, habit=name, of=row.model, moment=moment)
        return [census.sample(row, changed), sample_after(census, row, model)]

    return does


PATCH_ROWS: dict[str, Row] = {
    name: habit(equal(model), patched(name, moment), plan=plan, shared=shared)
    for name, (model, moment, plan, shared) in PATCHES.items()
}

REPLACING, REFERENCE, CHUNKED = "replacing.<locals>.replaced", "WithReference", "Chunked"
CHUNKS = "a feed-forward in chunks"


def read(name: str, path: str, *, text: str = "", holds: bool = True, **facts: bool) -> Any:
    """A habit whose function or class has a row. path: its name. text: that was read, if not its own."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        found: Any = importlib.import_module("pack.nodes.inside.facts")
        node = census.nodes.NODE_CLASS_MAPPINGS[NODE]
        functions: Any = sys.modules[node.__module__.replace("patch_habits", "patches")]
        target = functions.replacing(0.7) if path == REPLACING else getattr(functions, path)
        own = found.KnownFunction(
            "Habit", f"{found.PACK}/patches", path, text=text or found.hash_text(target, ()), holds=lambda _v: holds,
            **{"rows": False, **facts},
        )  # fmt: skip
        (changed,) = census.run(NODE, model=model, habit=name, of=row.model, moment="begin")
        with patch.dict(found.KNOWN, {own.place: own}):
            return [census.sample(row, changed)]

    return does


def shared(row: Row, plan: str) -> Row:
    return replace(row, shared=plan)


READ_ROWS: dict[str, Row] = {
    "a block that was read, with its rows apart": habit(
        equal(), read("a block in its place", REPLACING, tokens=True, rows=True), plan={"cfg": 2}, shared="cfg=2"
    ),
    "a feed-forward of a text that nobody has read": habit(
        shared(equal("wan"), "one rank"), read(CHUNKS, CHUNKED, tokens=True, text="another")
    ),
    "a feed-forward for which the row does not hold": habit(
        shared(equal("wan"), "one rank"), read(CHUNKS, CHUNKED, tokens=True, holds=False)
    ),
    "attention to the text that was read": habit(
        shared(equal("unet"), "ulysses=2"),
        read("attention to the text in one block", REFERENCE, tokens=True),
    ),
    "a feed-forward that was read": habit(shared(equal("wan"), "ulysses=2"), read(CHUNKS, CHUNKED, tokens=True)),
}
