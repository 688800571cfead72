"""A model's lists of blocks, as pipeline stages see them, whatever kind of spec they are in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockRow:
    """A list of the model's blocks, as stages see it.

    returned: the arguments that a block returns, in that order. shared: submodules of its blocks that every stage has,
    since the model reads them outside of the blocks; by their paths in the model.
    """

    path: str
    returned: tuple[str, ...]
    shared: tuple[str, ...] = ()
