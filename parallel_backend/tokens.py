"""The token boundary: token streams are sharded on the way into the first block and whole again after the last."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

from .collectives import gather, shard
from .mesh import Axis
from .models.spec import ModelSpec

TOKEN_DIM = 1


def install_token_boundary(
    model: torch.nn.Module, spec: ModelSpec, axis: Axis, on_lengths: Callable[[dict[str, int]], None]
) -> None:
    """Hooks the first and the last block so that the blocks between see this rank's share of every token stream.

    `on_lengths` is told the full length of each stream, by argument name, at the start of every forward.
    """
    blocks = [block for name in spec.blocks for block in model.get_submodule(name)]
    signature = inspect.signature(blocks[0].forward)
    lengths: dict[str, int] = {}

    def shard_streams(_block: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        bound = signature.bind(*args, **kwargs)
        for stream in spec.streams:
            tokens_BSD = bound.arguments[stream]
            lengths[stream] = tokens_BSD.shape[TOKEN_DIM]
            bound.arguments[stream] = shard(tokens_BSD, TOKEN_DIM, axis)
        on_lengths(lengths)
        return bound.args, bound.kwargs

    def gather_streams(_block: torch.nn.Module, _args: tuple, output: torch.Tensor | tuple) -> torch.Tensor | tuple:
        streams = output if isinstance(output, tuple) else (output,)
        whole = tuple(
            gather(tokens_BLD, TOKEN_DIM, lengths[name], axis)
            for name, tokens_BLD in zip(spec.streams, streams, strict=True)
        )
        return whole if isinstance(output, tuple) else whole[0]

    blocks[0].register_forward_pre_hook(shard_streams, with_kwargs=True)
    blocks[-1].register_forward_hook(gather_streams)
