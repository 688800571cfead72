"""Seam 1, the token boundary: blocks see this rank's share of every token stream and per-token side input.

Before the first local block the streams are cut, or come from the stage before; after the last local block they go to
the next stage, or the image stream comes together again: behind the head where that works token by token, else before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from ..hooks import Hooks
from ..models.spec import ModelSpec
from .joined import JoinedStreams
from .layout import TOKEN_DIM, TokenLayout
from .stages import Stage, StageLink, StandIn, block_list


def install_token_boundary(
    model: torch.nn.Module,
    spec: ModelSpec,
    layout: TokenLayout,
    hooks: Hooks,
    stage: Stage,
    link: StageLink | None = None,
) -> None:
    """Hooks the stage's blocks, in the order in which they run. link: to the stages before and after, if there are any.

    With a link, `StageExit` leaves the model's forward on every stage but the last.
    """
    blocks = stage.blocks
    every = [(name, block) for name in spec.blocks for block in block_list(model, name)]
    joins = {block: JoinedStreams(layout, spec.joined[name]) for name, block in every if name in spec.joined}
    image, joined = spec.streams[0], joins.get(blocks[-1])

    def begin(arguments: dict[str, Any]) -> None:
        layout.begin({stream: arguments[stream].shape[TOKEN_DIM] for stream in spec.streams})

    def enter(arguments: dict[str, Any]) -> None:
        if link and not link.is_first:
            parts = receive(link, stage, spec, layout, arguments[image])
            arguments.update({image: joins[blocks[0]].join(parts)} if blocks[0] in joins else parts)
        else:
            arguments.update({stream: layout.take(arguments[stream], stream) for stream in spec.streams})

    def leave(_block: torch.nn.Module, _args: tuple, output: torch.Tensor | tuple) -> torch.Tensor | tuple:
        streams = output if isinstance(output, tuple) else (output,)
        parts = joined.split(streams[0]) if joined else dict(zip(spec.returned, streams, strict=True))
        if link and not link.is_last:
            skips = [layout.forward.skips[made] for made in stage.outgoing]
            link.send([torch.cat([*(parts[name] for name in spec.streams), *skips], TOKEN_DIM)])
        if not spec.head or spec.head_unless in layout.forward.sides:
            parts[image] = layout.restore(parts[image])
            layout.forward.gathered = True
        if joined:
            return joined.join(joined.fill(parts))
        return tuple(parts.values()) if isinstance(output, tuple) else parts[image]

    _change_arguments(every[0][1], begin, hooks)
    _change_arguments(blocks[0], enter, hooks)
    for before, after in pairwise(blocks):
        if after in joins and before not in joins:
            _fill_between(before, after, joins[after], spec.returned, hooks)
    if link and spec.skips:
        _install_skips(spec.skips, stage, layout, hooks)
    if spec.side_inputs:
        _install_side_inputs(blocks, spec, layout, hooks)
    hooks.after(blocks[-1], leave)
    if spec.head:

        def gather(_head: torch.nn.Module, _args: tuple, tokens: torch.Tensor) -> torch.Tensor:
            return tokens if layout.forward.gathered else layout.restore(tokens)

        hooks.after(model.get_submodule(spec.head), gather)


def receive(
    link: StageLink, stage: Stage, spec: ModelSpec, layout: TokenLayout, like: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The streams' local tokens of the running segments, from the stage before, and what skips into this one or beyond
    it. like: dtype, width and batch."""
    names, segments = [*spec.streams, *stage.incoming], layout.segments
    lengths = [segments[name] if isinstance(name, str) else segments[layout.image] for name in names]

    def shares(running: list[int]) -> list[int]:
        return [layout.share([length[index] for index in running], layout.axis.index) for length in lengths]

    def shapes_of(running: list[int]) -> list[torch.Size]:
        return [torch.Size((len(like), sum(shares(running)), like.shape[-1]))]

    (tokens,) = link.receive(shapes_of, like)
    found = dict(zip(names, tokens.split(shares(layout.running), TOKEN_DIM), strict=True))
    layout.forward.skips = {made: found[made] for made in stage.incoming}
    return {name: found[name] for name in spec.streams}


def _fill_between(
    before: torch.nn.Module, after: torch.nn.Module, joined: JoinedStreams, returned: tuple[str, ...], hooks: Hooks
) -> None:
    """Streams leave the last block that takes them apart filled up, for the model to join, and go on as they were."""

    def fill(_block: torch.nn.Module, _args: tuple, output: tuple) -> tuple:
        return tuple(joined.fill(dict(zip(returned, output, strict=True))).values())

    hooks.after(before, fill)
    _change_arguments(after, joined.take_up, hooks)


def _change_arguments(block: torch.nn.Module, change: Callable[[dict[str, Any]], None], hooks: Hooks) -> None:
    """Lets `change` edit the arguments of the block's forward by name, however the model passes them."""
    signature = block.signature if isinstance(block, StandIn) else inspect.signature(block.forward)

    def rebind(_block: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        bound = signature.bind(*args, **kwargs)
        change(bound.arguments)
        return bound.args, bound.kwargs

    hooks.before(block, rebind, with_kwargs=True)


def _install_skips(argument: str, stage: Stage, layout: TokenLayout, hooks: Hooks) -> None:
    """Skip connections that cross stages: what goes out is kept where it is made, what comes in goes where it is used.

    The model's own bookkeeping sees the stand-ins' outputs in place of the real ones.
    """

    def keep(block: torch.nn.Module, made: int) -> None:
        hooks.after(block, lambda _block, _args, output: layout.forward.skips.__setitem__(made, output))

    def feed(block: torch.nn.Module, made: int) -> None:
        _change_arguments(block, lambda arguments: arguments.update({argument: layout.forward.skips[made]}), hooks)

    for place, block in enumerate(stage.blocks, stage.first):
        if place in stage.outgoing:
            keep(block, place)
        if stage.skip_sources.get(place) in stage.incoming:
            feed(block, stage.skip_sources[place])


def _install_side_inputs(blocks: Sequence[torch.nn.Module], spec: ModelSpec, layout: TokenLayout, hooks: Hooks) -> None:
    """Every block gets the same side inputs; each is cut once a forward."""

    def cut_sides(arguments: dict[str, Any]) -> None:
        for side in spec.side_inputs:
            whole = arguments.get(side.name)
            if whole is None or side.ndim not in (None, getattr(whole, "ndim", None)):
                continue
            cut = layout.forward.sides
            if side.name not in cut or cut[side.name][0] is not whole:
                cut[side.name] = (whole, layout.take_side_input(whole, side))
            arguments[side.name] = cut[side.name][1]

    for block in blocks:
        _change_arguments(block, cut_sides, hooks)
