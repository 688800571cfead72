"""Shares the tiles of a VAE that cuts pictures into tiles itself: each rank computes some of them.

Every rank runs the VAE's own code, which cuts, blends and joins tiles of space and clips of time. Only the calls of its
encoder or decoder are shared, one tile each. So the result has the bits of one rank.

Shapes: B batch, C channels, T frames, H and W of a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..groups.collectives import gather
from ..groups.mesh import Axis

META = torch.device("meta")


@dataclass(eq=False)
class SharedTiles:
    """Replaces the forward of a VAE's encoder or decoder while it runs. The ranks take the tiles in turn.

    Index 0 gets every tile's result at the call for that tile. The other ranks go on with placeholders, so that they do
    not wait for one another: each computes its tile of a round while index 0 computes the round's first. A round has as
    many tiles as there are ranks, and ends with a gather.

    shape: returns the result's for a tile's. device: of the placeholders. check: called before each round, on all
    ranks; it raises on all or on none.
    """

    forward: Callable[[torch.Tensor], torch.Tensor]
    shape: Callable[[torch.Size], tuple[int, ...]]
    device: torch.device
    axis: Axis
    check: Callable[[], None]
    calls: int = 0
    first: Any = None  # tile's shape; a gather takes the same from all ranks
    placeholder: Any = None
    round: Any = ()  # the results of the round's tiles

    def __call__(self, tile: torch.Tensor) -> torch.Tensor:
        turn, shape = self.calls % self.axis.degree, self.shape(tile.shape)
        if not turn:
            self.check()
        self.calls += 1
        self.first = self.first or shape
        if turn == self.axis.index:
            result = self.forward(tile)
            if not result.shape == shape == self.first or result.dtype != tile.dtype:
                raise RuntimeError(f"A tile gave {tuple(result.shape)} in {result.dtype}; {self.first} was expected.")
            self.exchange(result)
        if self.axis.index:
            self.placeholder = tile.new_empty(shape, device=self.device)
            return self.placeholder
        return self.round[turn]

    def exchange(self, result: torch.Tensor) -> None:
        tiles = gather(result.unsqueeze(0), 0, self.axis.degree, self.axis.evenly)
        self.round = () if self.axis.index else tiles

    def finish(self, device: torch.device) -> None:
        """Joins the last round's gather on the ranks that had no tile in it. device: of the results."""
        if 0 < self.calls % self.axis.degree <= self.axis.index:
            self.exchange(torch.empty_like(self.placeholder, device=device))
