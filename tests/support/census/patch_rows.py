"""What node packs put at ComfyUI's places for functions, as stock and in the ranks: each habit on each model that has
the place, at each moment, under each plan. And some of these functions as somebody has read them."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from tests.support.census.changes import sample_after
from tests.support.census.rows import Row, equal, habit

NODE = "PatchHabit"
PLANS: tuple[dict[str, int], ...] = ({}, {"ulysses": 2}, {"cfg": 2})
MOMENTS = ("begin", "sampling", "call", "inside", "callback")
MODELS = {
    "before attention": ("flux", "wan", "unet"),
    "before attention to the text": ("wan", "unet"),
    "behind attention": ("flux", "unet"),
    "behind attention to the text": ("unet",),
    "attention in one block": ("unet",),
    "attention to the text in one block": ("unet",),
    "input blocks": ("unet",),
    "input blocks behind the skip": ("unet",),
    "the middle block": ("unet",),
    "output blocks": ("unet",),
    "fewer pixels in the depth": ("unet",),
    "the time": ("unet",),
    "a block that is skipped": ("sd3", "flux", "wan"),
    "a block in its place": ("flux", "wan", "sd3"),
    "a single block that is skipped": ("flux",),
    "a single block in its place": ("flux",),
    "behind each block": ("wan", "zimage"),
    "before the blocks": ("flux",),
    "a feed-forward in chunks": ("flux", "wan", "sd3", "zimage", "unet"),
    "attention in windows": ("unet",),
}
# What runs where the ranks can have all tokens: around blocks, and by the rows of a UNet.
BETWEEN = (
    "a block that is skipped", "a block in its place", "a single block that is skipped", "a single block in its place",
    "behind each block", "before the blocks",
)  # fmt: skip
OF_UNETS = (
    "before attention to the text", "behind attention", "behind attention to the text", "attention in one block",
    "attention to the text in one block", "output blocks",
)  # fmt: skip
# Of each way in which functions reach the model's places, one or two.
GATE = (
    "before attention", "before attention to the text", "behind attention", "attention to the text in one block",
    "fewer pixels in the depth", "a block that is skipped", "a block in its place", "a single block in its place",
    "behind each block", "a feed-forward in chunks", "attention in windows",
)  # fmt: skip


def patched(name: str, moment: str) -> Any:
    """A habit at a moment, and the model without it after that."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        (changed,) = census.run(NODE, model=model, habit=name, of=row.model, moment=moment)
        return [census.sample(row, changed), sample_after(census, row, model)]

    return does


def patch_rows() -> Iterator[tuple[str, Row]]:
    """The gate has each habit of GATE once, and thereby each model, moment and plan: how a function comes to the ranks
    does not depend on its place."""
    for number, (name, models) in enumerate(MODELS.items()):
        of_gate = models[number % len(models)], MOMENTS[number % len(MOMENTS)], PLANS[number % len(PLANS)]
        for model, moment, plan in itertools.product(models, MOMENTS, PLANS):
            if (model, moment) == ("sd3", "inside"):  # whose class runs no such wrapper
                continue
            said = f"{name}, {moment}, {model}, {next(iter(plan), 'auto')}"
            sees_whole = name in (OF_UNETS if model == "unet" else BETWEEN)
            shared = "ulysses=2" if sees_whole else "one rank"
            row = replace(
                equal(model), plan=plan, shared=shared, slow=name not in GATE or (model, moment, plan) != of_gate
            )
            yield said, habit(row, patched(name, moment))


PATCH_ROWS: dict[str, Row] = dict(patch_rows())

REPLACING, REFERENCE, CHUNKED = "replacing.<locals>.replaced", "WithReference", "Chunked"
CHUNKS = "a feed-forward in chunks"


def read(name: str, path: str, *, text: str = "", holds: bool = True, **facts: bool) -> Any:
    """A habit whose function or class has a row. path: its name. text: that was read, if not its own."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        found: Any = importlib.import_module("pack.nodes.inside.facts")
        node = census.nodes.NODE_CLASS_MAPPINGS[NODE]
        functions: Any = sys.modules[node.__module__.replace("patch_habits", "patches")]
        target = functions.replacing(0.7) if path == REPLACING else getattr(functions, path)
        own = found.row(
            "Habit", f"{found.PACK}/patches", path, text=text or found.hash_text(target, ()), holds=lambda _v: holds,
            **{"rows": False, **facts},
        )  # fmt: skip
        (changed,) = census.run(NODE, model=model, habit=name, of=row.model, moment="begin")
        with patch.dict(found.KNOWN, dict([own])):
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
