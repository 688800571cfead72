"""Block lists that take the token streams joined, in one argument, after lists that took them apart.

Between the lists it is the model that joins them, and after the last block it cuts the image out again, by a length
that it read somewhere. So that this is the same length everywhere, the model is given every stream but the image in
its full length outside of the blocks: filled up with zeros, which nobody reads.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .layout import TOKEN_DIM, TokenLayout

Parts = dict[str, torch.Tensor]


class JoinedStreams:
    """The streams of a list in the order in which it joins them; the image, the first of the spec, is the last here."""

    def __init__(self, layout: TokenLayout, order: tuple[str, ...]) -> None:
        self.layout = layout
        self.order = order
        self.argument = layout.image

    def join(self, parts: Parts) -> torch.Tensor:
        return torch.cat([parts[stream] for stream in self.order], TOKEN_DIM)

    def split(self, joined_BLD: torch.Tensor) -> Parts:
        """The inverse of `join` for local tokens."""
        lengths = [self.layout.local_length(stream, self.layout.axis.index) for stream in self.order]
        return dict(zip(self.order, joined_BLD.split(lengths, TOKEN_DIM), strict=True))

    def fill(self, parts: Parts) -> Parts:
        """Every stream but the image in its full length."""
        missing = {name: sum(self.layout.segments[name]) - part.shape[TOKEN_DIM] for name, part in parts.items()}
        missing[self.argument] = 0
        return {name: F.pad(part, (0, 0, 0, missing[name])) for name, part in parts.items()}

    def take_up(self, arguments: dict[str, Any]) -> None:
        """Takes out again what `fill` put in, once the model has joined the streams."""
        tokens_BLD, local = arguments[self.argument], []
        for stream in self.order[:-1]:
            filled, tokens_BLD = tokens_BLD.tensor_split((sum(self.layout.segments[stream]),), TOKEN_DIM)
            local.append(filled[:, : self.layout.local_length(stream, self.layout.axis.index)])
        arguments[self.argument] = torch.cat([*local, tokens_BLD], TOKEN_DIM)
