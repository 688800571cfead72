"""Pipeline stages of a model whose blocks see filled streams (see `boundary.py`).

A stage's tokens are sent on where the next stage's first block begins, so that what the model adds to them after this
stage's last block, a ControlNet's residual say, goes with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...hooks import Hooks
from ...models.comfyui.checks import SKIP
from ...models.comfyui.spec import BlockList, Streams, names
from ..arguments import Arguments
from ..stages import Stage, StageLink, StandIn
from .streams import StreamLayout


class StageEnds:
    """What goes over the link at both ends of a stage."""

    def __init__(self, layout: StreamLayout, stage: Stage, link: StageLink) -> None:
        self.layout = layout
        self.stage = stage
        self.link = link

    def receive(self, blocks: BlockList, values: dict[str, Any]) -> None:
        """Puts the tokens from the stage before into the arguments of this stage's first block, cut as they are to this
        rank's."""
        layout, handed = self.layout, [(name, str(blocks.tokens[name])) for name in blocks.row().returned]
        templates = [(values[name].shape, names(streams)) for name, streams in handed]
        templates += [templates[0]] * len(self.stage.incoming)
        segments, dim = layout.segments, blocks.dim

        def shapes_of(running: list[int]) -> list[torch.Size]:
            counts = [sum(layout.padded(segments[name], running) for name in streams) for _, streams in templates]
            pairs = zip(templates, counts, strict=True)
            return [torch.Size((*shape[:dim], count, *shape[dim + 1 :])) for (shape, _), count in pairs]

        arrived = self.link.receive(shapes_of, like=values[handed[0][0]])
        values.update(zip([name for name, _ in handed], arrived, strict=False))
        layout.forward.skips = dict(zip(self.stage.incoming, arrived[len(handed) :], strict=True))

    def send(self, block: StandIn, blocks: BlockList, cut: Callable[[Any, Streams], Any], hooks: Hooks) -> None:
        """Has the tokens that the next stage's first block would get go there. block: what stands for that. cut: what
        cuts tokens of streams to this rank's."""

        def leave(_block: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            values = Arguments(block.signature, args, kwargs).values
            tokens = [cut(values[name], blocks.tokens[name]) for name in block.returned]
            self.link.send([*tokens, *(self.layout.forward.skips[made] for made in self.stage.outgoing)])

        hooks.before(block, leave, with_kwargs=True)

    def skip(self, block: torch.nn.Module, place: int, hooks: Hooks) -> None:
        """Keeps what a block returns for a later stage. The model's own bookkeeping sees the stand-ins' instead."""
        if place in self.stage.outgoing:
            hooks.after(block, lambda _block, _args, local: self.layout.forward.skips.__setitem__(place, local))

    def feed(self, place: int, values: dict[str, Any]) -> None:
        """Gives a block what skips to it from a stage before."""
        made = self.stage.skip_sources.get(place)
        if made in self.stage.incoming:
            values[SKIP] = self.layout.forward.skips[made]
