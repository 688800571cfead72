"""Seam 1 of a model that is called from outside with whatever it takes: its blocks see this rank's tokens, and what
lies between blocks sees filled streams (see `streams.py`).

The tokens of all ranks come together behind the last block, or behind the head where that works token by token.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch

from ...errors import RequestError
from ...hooks import Hooks
from ...models.comfyui.checks import modules_at
from ...models.comfyui.spec import ALWAYS_WHOLE, BlockList, HostSpec, Streams, names
from ..arguments import Arguments
from ..attention import ParallelAttention, install_attention
from ..beside import Beside
from ..stages import StandIn
from .masks import attend_by
from .stages import StageEnds
from .streams import Names, StreamLayout

Arrival = Callable[[dict[str, Any]], None]

IMAGE_PLACES = "img_slice"  # in it: where the image's tokens begin and end


class FilledBlock:
    """The hooks on one block."""

    def __init__(
        self,
        block: torch.nn.Module,
        spec: BlockList,
        layout: StreamLayout,
        is_last: bool,
        arrivals: Sequence[Arrival],
    ) -> None:
        """is_last: whether the tokens of all ranks come together behind it. arrivals: put what comes from other stages
        into its arguments."""
        self.spec = spec
        self.layout = layout
        self.is_last = is_last
        self.arrivals = arrivals
        self.signature = block.signature if isinstance(block, StandIn) else inspect.signature(block.forward)
        self.known = {ALWAYS_WHOLE, *spec.whole, *spec.cut}
        self.sizes: torch.Size | None = None  # of the grid that the tokens lie on

    def enter(self, block: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Cuts what the block is given to this rank's tokens. Raises RequestError for what nobody knows how to cut."""
        spec, layout = self.spec, self.layout
        given = Arguments(self.signature, args, kwargs)
        unknown = [name for name in given.values if name not in self.known and given.is_given(name)]
        if unknown:
            raise RequestError(
                f"The blocks {spec.path} ({type(block).__name__}) were given {', '.join(unknown)}, which cannot be "
                "shared over ranks yet.",
                "Use ulysses=1 and ring=1, or the stock loader.",
            )
        for name, make in spec.made.items():
            if given.values.get(name) is not None:
                given.values[name] = self.remembered(f"{name} made", given.values[name], make)
        self.learn_places(given.values)
        for name, tokens in spec.counts.items():
            given.values[tokens] = given.values[tokens].narrow(spec.dim, 0, given.values[name])
        cuts = {
            **{name: partial(self.cut, streams=streams) for name, streams in spec.tokens.items()},
            **{name: partial(self.cut_side, name=name) for name in spec.sides},
            **{name: partial(self.cut_frames, name=name) for name in spec.frames},
            **{name: partial(self.cut_last, name=name) for name in spec.last},
            **{name: partial(layout.cut_ranges, streams=names(streams)) for name, streams in spec.ranges.items()},
            **{name: partial(layout.cut_place, streams=names(streams)) for name, streams in spec.places.items()},
        }
        for name, cut in cuts.items():
            if given.values.get(name) is not None:
                given.values[name] = cut(given.values[name])
        for arrive in self.arrivals:
            arrive(given.values)
        for name, tokens in spec.counts.items():
            given.values[name] = given.values[tokens].shape[spec.dim]
        self.cut_options(given.values)
        return given.passed()

    def learn_places(self, values: dict[str, Any]) -> None:
        """Where the image is among joined tokens tells the lengths of both, if a node has had all blocks skipped that
        have them apart."""
        options, joined = values.get(ALWAYS_WHOLE), list(self.spec.tokens.values())
        streams = names(joined[0]) if len(joined) == 1 and isinstance(joined[0], str) else ()
        if isinstance(options, dict) and IMAGE_PLACES in options and len(streams) == 2:
            start, stop = options[IMAGE_PLACES]
            for name, length in zip(streams, (start, stop - start), strict=True):
                self.layout.learn((name,), length)

    def cut_options(self, values: dict[str, Any]) -> None:
        """Nodes' patches of joined tokens read where the image's are among them, which here are this rank's."""
        options, joined = values.get(ALWAYS_WHOLE), list(self.spec.tokens.values())
        if isinstance(options, dict) and IMAGE_PLACES in options and len(joined) == 1 and isinstance(joined[0], str):
            places = [self.layout.cut_place(place, names(joined[0])) for place in options[IMAGE_PLACES]]
            values[ALWAYS_WHOLE] = {**options, IMAGE_PLACES: places}

    def leave(self, _block: torch.nn.Module, _args: tuple, output: Any) -> Any:
        """Fills up what the block returns, or gathers it."""
        return each_stream(self.fill, output, self.spec.returns)

    def cut(self, value: Any, streams: Streams) -> Any:
        return each_stream(self.cut_tokens, value, streams)

    def cut_tokens(self, filled: torch.Tensor, streams: str) -> torch.Tensor:
        dim, grid = self.spec.dim, self.spec.grid
        if grid > 1:
            self.sizes = filled.shape[dim : dim + grid]
            filled = filled.flatten(dim, dim + grid - 1)
        local = self.layout.cut(filled, names(streams), dim)
        return local[(slice(None),) * (dim + 1) + (None,) * (grid - 1)]

    def fill(self, local: torch.Tensor, streams: str) -> torch.Tensor:
        dim, grid = self.spec.dim, self.spec.grid
        if grid > 1:
            local = local.flatten(dim, dim + grid - 1)
        filled = self.layout.fill(local, names(streams), dim)
        if self.is_last:
            filled = gather_last(self.layout, filled, names(streams), dim)
        return filled.unflatten(dim, self.sizes) if grid > 1 and self.sizes is not None else filled

    def cut_side(self, value: Any, name: str) -> Any:
        """A per-token argument, or each of several; one that is for all tokens stays as it is."""
        if isinstance(value, (tuple, list)):
            return type(value)(self.cut_side(item, name) for item in value)
        dim, streams = self.spec.sides[name]
        if not isinstance(value, torch.Tensor) or value.ndim <= dim or value.shape[dim] == 1:
            return value
        return self.remembered(name, value, lambda whole: self.layout.cut(whole, names(streams), dim))

    def cut_last(self, value: Any, name: str) -> Any:
        dim, stream = self.spec.last[name]
        return self.remembered(name, value, lambda whole: self.layout.cut_last(whole, stream, dim))

    def cut_frames(self, value: Any, name: str) -> Any:
        """An argument with an entry for each frame, of which each token gets its own; one for all stays as it is."""
        streams, ndim = self.spec.frames[name]
        if value.ndim != ndim or value.shape[1] == 1:
            return value
        tokens = self.layout.total(names(streams))
        of_one = math.ceil(tokens / value.shape[1])

        def by_token(frames: torch.Tensor) -> torch.Tensor:
            places = self.layout.cut(torch.arange(tokens, device=frames.device), names(streams), 0)
            return frames.index_select(1, places // of_one)

        return self.remembered(name, value, by_token)

    def remembered(self, name: str, whole: Any, change: Callable[[Any], Any]) -> Any:
        """Every block gets the same; it is changed once a forward."""
        sides, key = self.layout.forward.sides, f"{self.spec.path}.{name}.{id(whole)}"
        if key not in sides:
            sides[key] = (whole, change(whole))  # which keeps the whole, and so its id
        return sides[key][1]


def each_stream(change: Callable[[torch.Tensor, str], torch.Tensor], value: Any, streams: Streams | None) -> Any:
    """Changes a tensor of tokens, or each of several."""
    if value is None or streams is None:
        return value
    if isinstance(streams, str):
        return change(value, streams)
    return type(value)(each_stream(change, item, own) for item, own in zip(value, streams, strict=True))


def install_filled_boundary(
    model: torch.nn.Module,
    spec: HostSpec,
    layout: StreamLayout,
    attention: ParallelAttention,
    hooks: Hooks,
    ends: StageEnds | None,
    width: int,
) -> None:
    """Hooks the blocks of a model, and the attention inside of them. ends: of the stage, of several. width: of all
    heads."""
    every = [(blocks, block) for blocks in spec.blocks for block in modules_at(model, blocks.path)]
    own = [(place, *row) for place, row in enumerate(every) if not isinstance(row[1], StandIn)]
    for blocks, block in every[: own[0][0]]:
        if block is modules_at(model, blocks.path)[0]:
            learn_streams(block, blocks, layout, hooks)
    for place, blocks, block in own:
        is_last = spec.head is None and block is every[-1][1]
        arrivals: list[Arrival] = []
        if ends:
            if block is own[0][2] and not ends.link.is_first:
                arrivals.append(partial(ends.receive, blocks))
            arrivals.append(partial(ends.feed, place))
            ends.skip(block, place, hooks)
        filled = FilledBlock(block, blocks, layout, is_last, arrivals)
        hooks.before(block, filled.enter, with_kwargs=True)
        hooks.after(block, filled.leave)
        if attention.ulysses.degree > 1:
            Beside(block, blocks.beside, width, layout.slot).install(hooks)
        for path, streams in blocks.filled.items():
            fill_submodule(block.get_submodule(path), streams, layout, hooks)
        for path, streams in blocks.attention.items():
            module = block.get_submodule(path)
            calls = (streams,) if isinstance(streams, str) else streams
            attends = [attend_by(attention, layout, module, blocks, path, call) for call in calls]
            install_attention(block, path, attends, hooks, layout.slot)
    if ends and not ends.link.is_last:
        blocks, block = every[own[-1][0] + 1]
        following = FilledBlock(block, blocks, layout, is_last=False, arrivals=())
        ends.send(cast("StandIn", block), blocks, following.cut, hooks)
    if spec.head:
        head = model.get_submodule(spec.head.path)
        filled = FilledBlock(head, spec.head, layout, is_last=True, arrivals=())
        hooks.before(head, filled.enter, with_kwargs=True)
        hooks.after(head, filled.leave)


def learn_streams(block: torch.nn.Module, blocks: BlockList, layout: StreamLayout, hooks: Hooks) -> None:
    """Has the streams' lengths learned from what another stage's block is given here."""
    filled = FilledBlock(block, blocks, layout, is_last=False, arrivals=())

    def learn(block: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        filled.enter(block, args, kwargs)

    hooks.before(block, learn, with_kwargs=True)


def gather_last(layout: StreamLayout, filled: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
    """The tokens of all ranks, for what follows the blocks; as they are where no block has run, which cut them."""
    if not layout.segments:
        return filled
    layout.forward.gathered = True
    return layout.gather(filled, streams, dim)


def fill_submodule(module: torch.nn.Module, streams: Mapping[str, str], layout: StreamLayout, hooks: Hooks) -> None:
    """Gives a submodule of a block its tokens filled, and the block this rank's of what it returns."""
    change_arguments(module, streams, partial(layout.fill, dim=1), hooks)
    returned = names(next(iter(streams.values())))
    hooks.after(module, lambda _module, _args, output: layout.cut(output, returned, 1))


def change_arguments(
    module: torch.nn.Module,
    streams: Mapping[str, str],
    change: Callable[[torch.Tensor, Names], torch.Tensor],
    hooks: Hooks,
) -> None:
    """Changes those of a module's arguments that have tokens before it runs."""
    signature = inspect.signature(module.forward)

    def enter(_module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        given = Arguments(signature, args, kwargs)
        for name, own in streams.items():
            given.values[name] = change(given.values[name], names(own))
        return given.passed()

    hooks.before(module, enter, with_kwargs=True)
