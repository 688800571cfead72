"""The token boundary: token streams are sharded on the way into the first block and whole again after the last."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .collectives import gather, shard, shard_sizes
from .mesh import Axis
from .models.spec import ModelSpec, SideInput

TOKEN_DIM = 1


class TokenLayout:
    """How long each token stream is in the running forward, and how it is shared over the sequence axis."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.lengths: dict[str, int] = {}

    def shard_lengths(self, streams: tuple[str, ...]) -> list[int]:
        """Tokens of these streams together, by rank on the sequence axis."""
        return [sum(sizes) for sizes in zip(*(shard_sizes(self.lengths[name], self.axis.degree) for name in streams))]

    def shard_side_input(self, value: Any, side: SideInput) -> Any:
        """This rank's share of a per-token tensor, or of each in a tuple, that runs over `side.streams` in turn."""
        if isinstance(value, (tuple, list)):
            return type(value)(self.shard_side_input(item, side) for item in value)
        parts = value.split([self.lengths[name] for name in side.streams], side.dim)
        return torch.cat([shard(part, side.dim, self.axis) for part in parts], side.dim)


def install_token_boundary(model: torch.nn.Module, spec: ModelSpec, layout: TokenLayout) -> None:
    """Hooks the blocks so that they see this rank's share of every token stream and of every per-token side input.

    After the last block, the first stream is whole again: it is the one that the model's head reads.
    """
    blocks = [block for name in spec.blocks for block in model.get_submodule(name)]
    signature = inspect.signature(blocks[0].forward)

    def shard_streams(_block: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        bound = signature.bind(*args, **kwargs)
        for stream in spec.streams:
            tokens_BSD = bound.arguments[stream]
            layout.lengths[stream] = tokens_BSD.shape[TOKEN_DIM]
            bound.arguments[stream] = shard(tokens_BSD, TOKEN_DIM, layout.axis)
        return bound.args, bound.kwargs

    def gather_stream(_block: torch.nn.Module, _args: tuple, output: torch.Tensor | tuple) -> torch.Tensor | tuple:
        head = spec.streams[0]
        if not isinstance(output, tuple):
            return gather(output, TOKEN_DIM, layout.lengths[head], layout.axis)
        place = spec.returned.index(head)
        whole = gather(output[place], TOKEN_DIM, layout.lengths[head], layout.axis)
        return (*output[:place], whole, *output[place + 1 :])

    blocks[0].register_forward_pre_hook(shard_streams, with_kwargs=True)
    if spec.side_inputs:
        _shard_side_inputs(blocks, spec, layout)
    blocks[-1].register_forward_hook(gather_stream)


def _shard_side_inputs(blocks: list[torch.nn.Module], spec: ModelSpec, layout: TokenLayout) -> None:
    """Every block gets the same side inputs; each is sharded once a forward."""
    sharded: dict[str, tuple[Any, Any]] = {}

    def hook_for(block: torch.nn.Module) -> Any:
        signature = inspect.signature(block.forward)

        def shard_sides(_block: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            bound = signature.bind(*args, **kwargs)
            for side in spec.side_inputs:
                whole = bound.arguments.get(side.name)
                if whole is None:
                    continue
                if side.name not in sharded or sharded[side.name][0] is not whole:
                    sharded[side.name] = (whole, layout.shard_side_input(whole, side))
                bound.arguments[side.name] = sharded[side.name][1]
            return bound.args, bound.kwargs

        return shard_sides

    for block in blocks:
        block.register_forward_pre_hook(hook_for(block), with_kwargs=True)
