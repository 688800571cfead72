"""The token boundary: blocks see this rank's tokens, and the model sees streams of full length between the blocks.

The tokens of all ranks are gathered after the last block, or after the head if the head works token by token. Between
the blocks of a chained list nothing is copied, because streams stay local there (see `layout.py` for both words).

If nodes' code runs between the blocks (`ForwardSlot.sees_whole`), the tokens are gathered after every block. So this
code sees what it would see on one device, whatever it does. A block that it calls in a way that the spec does not know
runs whole, on every rank. So does a block that is called without the keys that its spec says are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch

from ..compat import version_of
from ..errors import RequestError
from ..hooks import Hooks
from ..models.checks import modules_at
from ..models.spec import ALWAYS_WHOLE, BlockList, ModelSpec, Streams, names, signature_of
from .arguments import Arguments, Parameters
from .layout import SPEC, Said, TokenLayout
from .pipeline.stage_ends import StageEnds
from .pipeline.stages import StandIn

Arrival = Callable[[dict[str, Any]], None]

IMAGE_PLACES = "img_slice"  # a key of ComfyUI's options: where the image's tokens begin and end


class GivenTokens(NamedTuple):
    """Tokens of all ranks that a block was called with, and this rank's copy of its own."""

    whole: torch.Tensor
    local: torch.Tensor
    streams: str

    @property
    def is_written(self) -> bool:
        return version_of(self.local) > 0


class BlockBoundary:
    """The hooks on one block.

    owner: the class of its model.
    arrivals: puts the tokens that other stages send into the block's arguments.
    chained: whether a chained block follows, so that streams stay local.
    gathers: whether the tokens of all ranks are gathered after the block.
    """

    def __init__(
        self,
        block: torch.nn.Module,
        blocks: BlockList,
        layout: TokenLayout,
        owner: str,
        arrivals: Sequence[Arrival] = (),
        chained: Callable[[], bool] = lambda: False,
        gathers: bool = False,
    ) -> None:
        self.blocks = blocks
        self.layout = layout
        self.owner = owner
        self.arrivals = arrivals
        self.chained = chained
        self.gathers = gathers
        signature = block.signature if isinstance(block, StandIn) else signature_of(block)
        self.parameters = Parameters(signature)
        self.known = {ALWAYS_WHOLE, *blocks.whole, *blocks.sharded, blocks.kept}
        joined = list(blocks.tokens.values())
        self.joined = names(joined[0]) if len(joined) == 1 and isinstance(joined[0], str) else ()
        # Functions of this object and a value. They are not bound to it, because a reference cycle would keep its
        # plan's groups.
        own = BlockBoundary
        self.cuts: Mapping[str, Callable[[BlockBoundary, Any], Any]] = {
            **{
                name: partial(own.cut, streams=streams, said=self.said("tokens", name))
                for name, streams in blocks.tokens.items()
            },
            **{
                name: partial(own.cut_side, name=name, streams=streams, said=self.said("sides", name))
                for name, (_, streams) in blocks.sides.items()
            },
            **{name: partial(own.cut_frames, name=name) for name in blocks.frames},
            **{name: partial(own.cut_last, name=name) for name in blocks.last},
            **{name: partial(own.cut_ranges, streams=names(streams)) for name, streams in blocks.ranges.items()},
            **{name: partial(own.cut_place, streams=names(streams)) for name, streams in blocks.places.items()},
        }
        self.sizes: torch.Size | None = None  # of the tokens' grid
        self.given: list[GivenTokens] = []  # if code between the blocks needs all tokens
        self.is_checked = False  # whether the block's output was compared with its spec

    def install(self, block: torch.nn.Module, hooks: Hooks) -> None:
        hooks.before(block, self.enter, with_kwargs=True)
        hooks.after(block, self.leave)

    def enter(self, block: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Cuts the block's arguments to this rank's tokens. Raises RequestError for an unlisted argument."""
        slot, given = self.layout.slot, Arguments(self.parameters, args, kwargs)
        slot.forward.is_whole = bool(self.blocks.kept) and not given.values.get(self.blocks.kept)
        if slot.forward.is_whole:
            return args, kwargs
        if not slot.sees_whole:
            return self.cut_arguments(block, given)
        self.given = []
        if self.leaves_out(given.values):
            return args, kwargs
        try:
            found = self.cut_arguments(block, given)
        except RequestError:  # all ranks find the same
            return args, kwargs
        slot.forward.in_block = True
        return found

    def leaves_out(self, values: dict[str, Any]) -> bool:
        """Whether some of the tokens do not count, so that ranks do not compute them."""
        counts, dim = self.blocks.counts, self.blocks.dim
        return any(values[count] < values[tokens].shape[dim] for count, tokens in counts.items())

    def cut_arguments(self, block: torch.nn.Module, given: Arguments) -> tuple[tuple, dict[str, Any]]:
        blocks = self.blocks
        unknown = [name for name in given.values if name not in self.known and given.is_given(name)]
        if unknown:
            raise RequestError(
                f"The blocks {blocks.path} ({type(block).__name__}) were given {', '.join(unknown)}, which cannot be "
                "shared over ranks yet.",
                "Use ulysses=1 and ring=1.",
            )
        for name, convert in blocks.converters.items():
            if given.values.get(name) is not None:
                given.values[name] = self.once(f"{name} converted", given.values[name], convert)
        if blocks.kept:
            _, _, self.layout.forward.kept = given.values[blocks.kept]
        self.learn_places(given.values)
        for name, tokens in blocks.counts.items():
            given.values[tokens] = given.values[tokens].narrow(blocks.dim, 0, given.values[name])
        for name, cut in self.cuts.items():
            if given.values.get(name) is not None:
                given.values[name] = cut(self, given.values[name])
        for arrive in self.arrivals:
            arrive(given.values)
        for name, tokens in blocks.counts.items():
            given.values[name] = given.values[tokens].shape[blocks.dim]
        self.cut_options(given.values)
        return given.passed()

    def leave(self, _block: torch.nn.Module, _args: tuple, output: Any) -> Any:
        """Brings the block's output to full length, or gathers it. Between chained blocks it stays local."""
        slot = self.layout.slot
        if slot.is_between:  # it has run whole
            return output
        if not self.is_checked and output is not None:
            self.check_returned(output)
            self.is_checked = True
        if slot.sees_whole:
            return self.leave_whole(output)
        return output if self.chained() else each_stream(self.fill, output, self.blocks.returns)

    def leave_whole(self, output: Any) -> Any:
        """Gathers the block's output. What the block has written into the caller's tokens is written there, too."""
        given, self.given = self.given, []
        self.layout.slot.forward.in_block = False
        for each in given:
            if each.is_written:
                each.whole.copy_(self.fill(each.local, each.streams))

        def gather(local: torch.Tensor, streams: str) -> torch.Tensor:
            same = next((each.whole for each in given if each.local is local), None)
            return self.fill(local, streams) if same is None else same

        return each_stream(gather, output, self.blocks.returns)

    def check_returned(self, output: Any) -> None:
        """Raises RequestError, on every rank alike, if the block's output has other streams than its spec says."""
        returns, dim, grid = self.blocks.returns, self.blocks.dim, self.blocks.grid
        values = output if isinstance(output, (tuple, list)) else (output,)
        streams = (returns,) * (len(values) if self.blocks.optional else 1) if isinstance(returns, str) else returns
        if streams is None:
            return
        sizes = [value.shape[dim : dim + grid] if isinstance(value, torch.Tensor) else None for value in values]
        lengths = [None if size is None else math.prod(size) for size in sizes]
        if len(lengths) != len(streams) or not all(
            stream is None or length is None or self.layout.is_local(names(stream), length)
            for stream, length in zip(streams, lengths, strict=True)
        ):
            raise RequestError(
                f"{self.owner}: {self.blocks.path} return {' and '.join(map(str, lengths))} tokens, and `returns` says "
                f"{' and '.join(map(str, streams))}; this rank has {self.layout.describe_local()}.",
                "Correct `returns`, as parallel_backend/models/README.md says, or use ulysses=1 and ring=1.",
            )

    def learn_places(self, values: dict[str, Any]) -> None:
        """Learns the lengths of joined streams from the position of the image in them. The boundary needs this if a
        node skips all blocks that take the streams separately."""
        options = values.get(ALWAYS_WHOLE)
        if len(self.joined) == 2 and isinstance(options, dict) and IMAGE_PLACES in options:
            start, stop = options[IMAGE_PLACES]
            for name, length in zip(self.joined, (start, stop - start), strict=True):
                self.layout.learn((name,), length)

    def cut_options(self, values: dict[str, Any]) -> None:
        """Replaces the image's position among all tokens by its position among this rank's tokens. Nodes' patches read
        it."""
        options = values.get(ALWAYS_WHOLE)
        if self.joined and isinstance(options, dict) and IMAGE_PLACES in options:
            places = [self.layout.cut_place(place, self.joined) for place in options[IMAGE_PLACES]]
            values[ALWAYS_WHOLE] = {**options, IMAGE_PLACES: places}

    def cut(self, value: Any, streams: Streams, said: Said = SPEC) -> Any:
        return each_stream(partial(self.cut_tokens, said=said), value, streams)

    def said(self, field: str, name: str) -> Said:
        return Said(f"{self.owner}: {name} of {self.blocks.path}", f"`{field}`")

    def cut_tokens(self, tokens: torch.Tensor, streams: str, said: Said) -> torch.Tensor:
        if not self.layout.slot.sees_whole:
            return self.cut_part(tokens, streams, said)
        with torch.inference_mode(False):  # a tensor of inference mode does not count what is written into it
            local = self.cut_part(tokens, streams, said).clone()
        self.given.append(GivenTokens(tokens, local, streams))
        return local

    def cut_part(self, tokens: torch.Tensor, streams: str, said: Said) -> torch.Tensor:
        dim, grid, sees_whole = self.blocks.dim, self.blocks.grid, self.layout.slot.sees_whole
        if self.blocks.chained and not sees_whole and self.layout.is_local(names(streams), tokens.shape[dim]):
            return tokens
        if grid > 1:
            self.sizes = tokens.shape[dim : dim + grid]
            tokens = tokens.flatten(dim, dim + grid - 1)
        local = self.layout.cut(tokens, names(streams), dim, said)
        if len(local) == 1:  # the dim of size 1 gets its usual stride, so that compiled blocks need no other graph
            local = local[0][None]
        return local[(slice(None),) * (dim + 1) + (None,) * (grid - 1)] if grid > 1 else local

    def fill(self, local: torch.Tensor, streams: str) -> torch.Tensor:
        dim, grid = self.blocks.dim, self.blocks.grid
        if grid > 1:
            local = local.flatten(dim, dim + grid - 1)
        if self.gathers or self.layout.slot.sees_whole:
            self.layout.forward.gathered = True
            tokens = self.layout.gather(local, names(streams), dim, (self, streams) if self.gathers else None)
        else:
            tokens = self.layout.fill(local, names(streams), dim)
        return tokens.unflatten(dim, self.sizes) if grid > 1 and self.sizes is not None else tokens

    def cut_side(self, value: Any, name: str, streams: Streams | None, said: Said = SPEC) -> Any:
        """Cuts a per-token argument, or each tensor of a list. A tensor that applies to all tokens stays as it is, as
        does an item of no stream."""
        if streams is None:
            return value
        if isinstance(value, (tuple, list)):
            each = streams if isinstance(streams, tuple) else (streams,) * len(value)
            return type(value)(self.cut_side(item, name, own, said) for item, own in zip(value, each, strict=True))
        dim = self.blocks.sides[name][0]
        if not isinstance(value, torch.Tensor) or value.ndim <= dim or value.shape[dim] == 1:
            return value
        return self.once(name, value, lambda whole: self.layout.cut(whole, names(str(streams)), dim, said))

    def cut_ranges(self, value: Any, streams: tuple[str, ...]) -> Any:
        return self.layout.cut_ranges(value, streams)

    def cut_place(self, value: Any, streams: tuple[str, ...]) -> int:
        return self.layout.cut_place(value, streams)

    def cut_last(self, value: Any, name: str) -> Any:
        dim, stream = self.blocks.last[name]
        return self.once(name, value, lambda whole: self.layout.cut_last(whole, stream, dim))

    def cut_frames(self, value: Any, name: str) -> Any:
        """Gives each token its frame's entry of a per-frame argument. A tensor that applies to all frames stays as it
        is."""
        streams, ndim = self.blocks.frames[name]
        if value.ndim != ndim or value.shape[1] == 1:
            return value
        self.layout.forward.by_frame = True
        tokens = self.layout.total(names(streams))
        of_one = math.ceil(tokens / value.shape[1])

        def by_token(frames: torch.Tensor) -> torch.Tensor:
            places = self.layout.cut(torch.arange(tokens, device=frames.device), names(streams), 0)
            return frames.index_select(1, places // of_one)

        return self.once(name, value, by_token)

    def once(self, name: str, whole: Any, change: Callable[[Any], Any]) -> Any:
        """Changes an argument that is the same for every block only once per forward."""
        if self.layout.slot.sees_whole:  # nodes' code may write into it
            return change(whole)
        sides, key = self.layout.forward.sides, f"{self.blocks.path}.{name}.{id(whole)}"
        if key not in sides:
            sides[key] = (whole, change(whole))  # the id is valid as long as the whole tensor is kept
        return sides[key][1]


def each_stream(change: Callable[[torch.Tensor, str], torch.Tensor], value: Any, streams: Streams | None) -> Any:
    """Changes a tensor of tokens, or each tensor of a list."""
    if value is None or streams is None:
        return value
    if isinstance(streams, str):
        if isinstance(value, tuple):
            return tuple(change(item, streams) for item in value)
        return change(value, streams)
    return type(value)(each_stream(change, item, own) for item, own in zip(value, streams, strict=True))


def install_boundary(
    model: torch.nn.Module, spec: ModelSpec, layout: TokenLayout, hooks: Hooks, ends: StageEnds | None
) -> None:
    """Hooks the blocks of a model, and its head. ends: of the stage, if there are several.

    layout: of the model; of the other model for a network inside of it.
    """
    owner = type(model).__name__
    every = [(blocks, block) for blocks in spec.blocks for block in modules_at(model, blocks.path)]
    own = [(place, *each) for place, each in enumerate(every) if not isinstance(each[1], StandIn)]
    follows = {block: blocks.chained and blocks is after for (blocks, block), (after, _) in pairwise(every)}
    for blocks, block in every[: own[0][0]]:
        if block is modules_at(model, blocks.path)[0]:
            learn_streams(block, blocks, layout, owner, hooks)
    for place, blocks, block in own:
        arrivals: list[Arrival] = []
        if ends:
            if block is own[0][2] and not ends.link.is_first:
                arrivals.append(partial(ends.receive, blocks))
            arrivals.append(partial(ends.feed_skip, place))
            ends.keep_skip(block, place, hooks)
        is_last = block is every[-1][1]
        chained = partial(reaches_head, spec, layout) if is_last else partial(follows.__getitem__, block)
        gathers = blocks.gathered or (is_last and not spec.head and not spec.inside)
        BlockBoundary(block, blocks, layout, owner, arrivals, chained, gathers).install(block, hooks)
        for path, streams in blocks.full_length.items():
            restore_full_length(block.get_submodule(path), streams, layout, hooks)
    if ends and not ends.link.is_last:
        blocks, block = every[own[-1][0] + 1]
        ends.send_before(cast("StandIn", block), blocks, BlockBoundary(block, blocks, layout, owner).cut, hooks)
    if spec.head:
        head = model.get_submodule(spec.head.path)
        BlockBoundary(head, spec.head, layout, owner, gathers=True).install(head, hooks)


def reaches_head(spec: ModelSpec, layout: TokenLayout) -> bool:
    """Whether the last block's streams stay local up to the head."""
    return spec.head is not None and spec.head.chained and not layout.forward.by_frame


def learn_streams(block: torch.nn.Module, blocks: BlockList, layout: TokenLayout, owner: str, hooks: Hooks) -> None:
    """Learns the streams' lengths from the arguments of another stage's block."""
    boundary = BlockBoundary(block, blocks, layout, owner)

    def learn(block: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        boundary.enter(block, args, kwargs)

    hooks.before(block, learn, with_kwargs=True)


def restore_full_length(module: torch.nn.Module, streams: Mapping[str, str], layout: TokenLayout, hooks: Hooks) -> None:
    """Gives a block's submodule its tokens in full length, and the block this rank's part of the result."""
    parameters, returned = Parameters(signature_of(module)), names(next(iter(streams.values())))

    def enter(_module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if layout.slot.is_between:
            return args, kwargs
        given = Arguments(parameters, args, kwargs)
        for name, own in streams.items():
            given.values[name] = layout.fill(given.values[name], names(own), 1)
        return given.passed()

    def leave(_module: torch.nn.Module, _args: tuple, output: torch.Tensor) -> torch.Tensor:
        return output if layout.slot.is_between else layout.cut(output, returned, 1)

    hooks.before(module, enter, with_kwargs=True)
    hooks.after(module, leave)
