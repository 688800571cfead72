"""What pipeline stages send one another: tokens and skip connections.

A stage sends its tokens just before the next stage's first block. So they include what the model adds after this
stage's last block, such as a ControlNet's residual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...hooks import Hooks
from ...models.spec import SKIP, BlockList, Streams, names
from ..arguments import Arguments
from ..layout import TokenLayout
from .stages import Stage, StageLink, StandIn


def flatten(arguments: Sequence[tuple[Any, Streams]]) -> list[tuple[torch.Tensor, str]]:
    """Returns the tensors of arguments with tokens, each with its streams."""
    found = []
    for value, streams in arguments:
        found += [(value, streams)] if isinstance(streams, str) else zip(value, streams, strict=True)
    return found


@dataclass(eq=False)
class StageEnds:
    """Both ends of a stage, and its link to other stages."""

    layout: TokenLayout
    stage: Stage
    link: StageLink

    def receive(self, blocks: BlockList, values: dict[str, Any]) -> None:
        """Puts the tokens from the previous stage into the arguments of this stage's first block. They are local."""
        layout, handed = self.layout, flatten([(values[name], blocks.tokens[name]) for name in blocks.returned])
        templates = [(tensor.shape, names(streams)) for tensor, streams in handed]
        templates += [templates[0]] * len(self.stage.incoming)
        segments, dim = layout.segments, blocks.dim

        def shapes_of(running: list[int]) -> list[torch.Size]:
            counts = [sum(layout.local_length(segments[name], running) for name in streams) for _, streams in templates]
            pairs = zip(templates, counts, strict=True)
            return [torch.Size((*shape[:dim], count, *shape[dim + 1 :])) for (shape, _), count in pairs]

        arrived = iter(self.link.receive(shapes_of, like=handed[0][0]))
        for name in blocks.returned:
            streams = blocks.tokens[name]
            is_one = isinstance(streams, str)
            values[name] = next(arrived) if is_one else type(values[name])(next(arrived) for _ in streams)
        layout.forward.skips = dict(zip(self.stage.incoming, arrived, strict=True))

    def send_before(self, block: StandIn, blocks: BlockList, cut: Callable[[Any, Streams], Any], hooks: Hooks) -> None:
        """Sends the tokens that the next stage's first block would get. block: its stand-in. cut: makes streams
        local."""

        def leave(_block: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            values = Arguments(block.takes, args, kwargs).values
            local = [(cut(values[name], blocks.tokens[name]), blocks.tokens[name]) for name in block.returned]
            tokens = [tensor for tensor, _ in flatten(local)]
            self.link.send([*tokens, *(self.layout.forward.skips[place] for place in self.stage.outgoing)])

        hooks.before(block, leave, with_kwargs=True)

    def keep_skip(self, block: torch.nn.Module, place: int, hooks: Hooks) -> None:
        """Keeps a block's output for a later stage. The model's own code sees the stand-ins' output instead."""
        if place in self.stage.outgoing:
            hooks.after(block, lambda _block, _args, local: self.layout.forward.skips.__setitem__(place, local))

    def feed_skip(self, place: int, values: dict[str, Any]) -> None:
        """Gives a block the skip connection from an earlier stage."""
        source = self.stage.skip_sources.get(place)
        if source in self.stage.incoming:
            values[SKIP] = self.layout.forward.skips[source]
