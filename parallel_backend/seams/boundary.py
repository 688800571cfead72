"""The token boundary: blocks see this rank's tokens, and the model sees streams of full length between the blocks.

The tokens of all ranks are gathered after the last block, or after the head if the head works token by token. Between
the blocks of a LOCAL list nothing is copied, because streams stay local there (see `layout.py` for both words).

If nodes' code runs between the blocks (`NodeCode.BETWEEN_BLOCKS`), the tokens are gathered after every block. So
this code sees what it would see on one device, whatever it does. A block that it calls in a way that the spec does not
know runs whole, on every rank. So does a block that is called without the keys that its spec says are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch

from ..compat import version_of
from ..errors import RequestError
from ..hooks import Hooks
from ..models.checks import modules_at
from ..models.spec import (
    ALWAYS_WHOLE,
    GATHERED,
    IMAGE_PLACES,
    LOCAL,
    BlockList,
    ByFrame,
    Kept,
    Last,
    ModelSpec,
    Places,
    Side,
    Streams,
    names,
    signature_of,
)
from .arguments import Parameters
from .forward import NodeCode
from .layout import SPEC, Said, TokenLayout
from .pipeline.stages import StageLink, StandIn

TOKENS_NDIM = 3  # of tokens in one dim, with rows and channels


class BlockBoundary:
    """The hooks on one block of a model.

    arrive: puts the tokens that the stage before sends into the block's arguments.
    chained: whether streams stay local up to the next block or head. is_last: whether this is the model's last block.
    gathers: whether the tokens of all ranks are gathered after the block.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        block: torch.nn.Module,
        blocks: BlockList,
        layout: TokenLayout,
        arrive: Callable[[dict[str, Any]], None] | None = None,
        chained: bool = False,
        is_last: bool = False,
        gathers: bool = False,
    ) -> None:
        self.owner = type(model).__name__
        self.blocks = blocks
        self.layout = layout
        self.arrive = arrive
        self.chained, self.is_last = chained, is_last
        self.gathers = gathers
        self.parameters = block.takes if isinstance(block, StandIn) else Parameters(signature_of(block))
        self.known = {ALWAYS_WHOLE, *blocks.whole, *blocks.sharded}
        self.kept = blocks.kept
        joined = list(blocks.tokens.values())
        self.joined = names(joined[0]) if len(joined) == 1 and isinstance(joined[0], str) else ()
        self.grid: torch.Size | None = None  # the sizes of the tokens' dims, if they fill several
        # If code between the blocks needs all tokens: those that the block was given, and this rank's copy of its own.
        self.given: list[tuple[torch.Tensor, torch.Tensor, str]] = []
        self.is_checked = False  # whether the block's output was compared with its spec

    def install(self, block: torch.nn.Module, hooks: Hooks) -> None:
        hooks.before(block, self.enter, with_kwargs=True)
        hooks.after(block, self.leave)

    def enter(self, block: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Cuts the block's arguments to this rank's tokens. Raises RequestError for an unlisted argument."""
        slot, values = self.layout.slot, self.parameters.name(args, kwargs)
        self.given, slot.has_all_tokens = [], True
        if self.kept and not values.get(self.kept):
            return args, kwargs
        try:
            self.cut_arguments(block, values)
        except RequestError:  # all ranks find the same
            if slot.code is not NodeCode.BETWEEN_BLOCKS:
                raise
            return args, kwargs
        slot.has_all_tokens = False
        return self.parameters.pass_on(values, args, kwargs)

    def cut_arguments(self, block: torch.nn.Module, values: dict[str, Any]) -> None:
        """Cuts the values of the block's arguments, by name."""
        blocks, is_given = self.blocks, self.parameters.is_given
        unknown = [name for name in values if name not in self.known and is_given(name, values[name])]
        if unknown:
            raise RequestError(
                f"The blocks {blocks.path} ({type(block).__name__}) were given {', '.join(unknown)}, which cannot be "
                "shared over ranks yet.",
                "Use ulysses=1 and ring=1.",
            )
        for name, convert in blocks.converters.items():
            if (value := values.get(name)) is None:
                continue
            values[name] = self.once(f"{name} converted", value, partial(convert, values=values))
            is_cut = name in blocks.tokens and values[name].shape != value.shape
            if is_cut and self.layout.slot.code is NodeCode.BETWEEN_BLOCKS:
                raise RequestError(
                    "Code between the blocks sees tokens that do not count.", "Use ulysses=1 and ring=1."
                )
        self.cut_options(values)
        for name, streams in blocks.tokens.items():
            if values.get(name) is not None:
                values[name] = self.cut(values[name], streams, (f"{self.owner}: {name} of {blocks.path}", "`tokens`"))
        for name, side in blocks.sides.items():
            if values.get(name) is not None:
                values[name] = self.cut_side(values[name], name, side)
        if self.arrive:
            self.arrive(values)

    def leave(self, _block: torch.nn.Module, _args: tuple, output: Any) -> Any:
        """Brings the block's output to full length, or gathers it. Between chained blocks it stays local."""
        slot = self.layout.slot
        if slot.has_all_tokens:  # it has run whole
            return output
        if not self.is_checked and output is not None:
            self.check_returned(output)
            self.is_checked = True
        if slot.code is NodeCode.BETWEEN_BLOCKS:
            return self.leave_whole(output)
        if self.chained and not (self.is_last and self.layout.forward.by_frame):
            return output
        return each_stream(self.fill, output, self.blocks.returns)

    def leave_whole(self, output: Any) -> Any:
        """Gathers the block's output. What the block has written into the caller's tokens is written there, too."""
        given, self.given = self.given, []
        self.layout.slot.has_all_tokens = True
        for whole, local, streams in given:
            if version_of(local) > 0:
                whole.copy_(self.fill(local, streams))

        def gather(local: torch.Tensor, streams: str) -> torch.Tensor:
            same = next((whole for whole, own, _ in given if own is local), None)
            return self.fill(local, streams) if same is None else same

        return each_stream(gather, output, self.blocks.returns)

    def check_returned(self, output: Any) -> None:
        """Raises RequestError, on every rank alike, if the block's output has other streams than its spec says."""
        returns = self.blocks.returns
        if returns is None:
            return
        values = output if isinstance(output, (tuple, list)) else (output,)
        said = (returns,) if isinstance(returns, str) else returns
        streams = said * len(values) if isinstance(returns, str) else said
        lengths = [self.flat(value).shape[self.blocks.dim] if torch.is_tensor(value) else None for value in values]
        if len(lengths) != len(streams) or not all(
            stream is None or length is None or self.layout.is_local(names(stream), length)
            for stream, length in zip(streams, lengths, strict=True)
        ):
            raise RequestError(
                f"{self.owner}: {self.blocks.path} return {' and '.join(map(str, lengths))} tokens, and `returns` says "
                f"{' and '.join(map(str, said))}; this rank has {self.layout.describe_local()}.",
                "Correct `returns`, as parallel_backend/models/README.md says, or use ulysses=1 and ring=1.",
            )

    def cut_options(self, values: dict[str, Any]) -> None:
        """Replaces the image's place among all tokens by its place among this rank's tokens, which nodes' patches read.
        Learns the streams' lengths from it, because a node may skip all blocks that take the streams separately."""
        options = values.get(ALWAYS_WHOLE)
        if not self.joined or not isinstance(options, dict) or IMAGE_PLACES not in options:
            return
        start, stop = options[IMAGE_PLACES]
        *before, image = self.joined
        if len(before) < 2:
            for name in before:
                self.layout.learn((name,), start)
            self.layout.learn((image,), stop - start if before else stop)
        ends = [self.layout.cut_position(each, self.joined) for each in (start, stop)]
        values[ALWAYS_WHOLE] = {**options, IMAGE_PLACES: ends}

    def cut(self, value: Any, streams: Streams, said: Said = SPEC) -> Any:
        return each_stream(partial(self.cut_tokens, said=said), value, streams)

    def cut_tokens(self, tokens: torch.Tensor, streams: str, said: Said) -> torch.Tensor:
        dim, flat, copies = self.blocks.dim, self.flat(tokens), self.layout.slot.code is NodeCode.BETWEEN_BLOCKS
        may_be_local = self.blocks.between == LOCAL and not copies
        if may_be_local and self.layout.is_local(names(streams), flat.shape[dim]):
            return tokens
        dims = tokens.ndim - flat.ndim
        self.grid = tokens.shape[dim : dim + dims + 1] if dims else None
        local = self.layout.cut(flat, names(streams), dim, said)
        if len(local) == 1:  # the dim of size 1 gets its usual stride, so that compiled blocks need no other graph
            local = local[0][None]
        local = local[(slice(None),) * (dim + 1) + (None,) * dims] if dims else local
        if copies:
            with torch.inference_mode(False):  # a tensor of inference mode does not count what is written into it
                local = local.clone()
            self.given.append((tokens, local, streams))
        return local

    def flat(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns tokens with one dim for all, beside those of rows and channels. Those of a video may fill several."""
        dims = tokens.ndim - TOKENS_NDIM
        return tokens.flatten(self.blocks.dim, self.blocks.dim + dims) if dims > 0 else tokens

    def fill(self, local: torch.Tensor, streams: str) -> torch.Tensor:
        dim, local = self.blocks.dim, self.flat(local)
        if self.gathers or self.layout.slot.code is NodeCode.BETWEEN_BLOCKS:
            self.layout.forward.gathered = True
            tokens = self.layout.gather(local, names(streams), dim, (self, streams) if self.gathers else None)
        else:
            tokens = self.layout.fill(local, names(streams), dim)
        return tokens.unflatten(dim, self.grid) if self.grid else tokens

    def cut_side(self, value: Any, name: str, side: Side) -> Any:
        """Returns this rank's part of an argument that depends on tokens."""
        layout = self.layout
        match side:
            case Places(streams):
                own = names(streams)
                return layout.cut_position(value, own) if isinstance(value, int) else layout.cut_ranges(value, own)
            case Last(dim, stream):
                return self.once(name, value, lambda whole: layout.cut_last(whole, stream, dim))
            case Kept():
                *_, layout.forward.kept = value
                return value
            case ByFrame(ndim, stream):
                return self.cut_frames(value, name, ndim, stream)
            case dim, streams:
                said = (f"{self.owner}: {name} of {self.blocks.path}", "`sides`")
                return self.cut_entries(value, name, dim, streams, said)

    def cut_entries(self, value: Any, name: str, dim: int, streams: Streams | None, said: Said) -> Any:
        """Cuts a per-token argument, or each tensor of a list. A tensor that applies to all tokens stays as it is."""

        def cut(entries: Any, own: str) -> Any:
            if not isinstance(entries, torch.Tensor) or entries.ndim <= dim or entries.shape[dim] == 1:
                return entries
            return self.once(name, entries, lambda whole: self.layout.cut(whole, names(own), dim, said))

        return each_stream(cut, value, streams)

    def cut_frames(self, value: Any, name: str, ndim: int, stream: str) -> Any:
        """Gives each token its frame's entry of a per-frame argument. A tensor that applies to all frames stays as it
        is."""
        if value.ndim != ndim or value.shape[1] == 1:
            return value
        self.layout.forward.by_frame = True
        tokens = self.layout.total((stream,))
        of_one = math.ceil(tokens / value.shape[1])

        def by_token(frames: torch.Tensor) -> torch.Tensor:
            positions = self.layout.cut(torch.arange(tokens, device=frames.device), (stream,), 0)
            return frames.index_select(1, positions // of_one)

        return self.once(name, value, by_token)

    def once(self, name: str, whole: Any, change: Callable[[Any], Any]) -> Any:
        """Changes an argument that is the same for every block only once per forward."""
        if self.layout.slot.code is NodeCode.BETWEEN_BLOCKS:  # nodes' code may write into it
            return change(whole)
        key = f"{self.blocks.path}.{name}.{id(whole)}"
        _, changed = self.layout.forward.once(key, lambda: (whole, change(whole)))  # kept, so that its id stays its own
        return changed


def each_stream(change: Callable[[torch.Tensor, str], torch.Tensor], value: Any, streams: Streams | None) -> Any:
    """Changes a tensor of tokens, or each tensor of a tuple or list. An item of no stream stays as it is."""
    if value is None or streams is None:
        return value
    if isinstance(value, (tuple, list)):
        each = streams if isinstance(streams, tuple) else (streams,) * len(value)
        return type(value)(each_stream(change, item, own) for item, own in zip(value, each, strict=True))
    assert isinstance(streams, str)
    return change(value, streams)


def install_boundary(
    model: torch.nn.Module, spec: ModelSpec, layout: TokenLayout, hooks: Hooks, link: StageLink | None
) -> None:
    """Hooks the blocks of a model, and its head. link: to the neighbouring stages, if any.

    layout: of the model; of the other model for a network inside of it.
    """
    every = [(blocks, block) for blocks in spec.blocks for block in modules_at(model, blocks.path)]
    own = [index for index, (_, block) in enumerate(every) if not isinstance(block, StandIn)]
    follows = {block: blocks.between == LOCAL and blocks is after for (blocks, block), (after, _) in pairwise(every)}
    for blocks, block in every[: own[0]]:
        if block is modules_at(model, blocks.path)[0]:
            boundary = BlockBoundary(model, block, blocks, layout)
            hooks.before(block, partial(learn_streams, boundary), with_kwargs=True)
    for index in own:
        blocks, block = every[index]
        arrive = partial(link.receive, blocks) if link and not link.is_first and index == own[0] else None
        is_last = block is every[-1][1]
        chained = bool(spec.head and spec.head.between == LOCAL) if is_last else follows[block]
        gathers = blocks.between == GATHERED or (is_last and not spec.head and spec.inside is None)
        BlockBoundary(model, block, blocks, layout, arrive, chained, is_last, gathers).install(block, hooks)
        for path, streams in blocks.full_length.items():
            restore_full_length(block.get_submodule(path), streams, layout, hooks)
    if link and not link.is_last:
        blocks, block = every[own[-1] + 1]
        link.send_before(cast("StandIn", block), blocks, BlockBoundary(model, block, blocks, layout).cut, hooks)
    if spec.head:
        head = model.get_submodule(spec.head.path)
        BlockBoundary(model, head, spec.head, layout, gathers=True).install(head, hooks)


def learn_streams(boundary: BlockBoundary, *called: Any) -> None:
    """Learns the streams' lengths from what another stage's block is given."""
    boundary.enter(*called)


def restore_full_length(module: torch.nn.Module, streams: Mapping[str, str], layout: TokenLayout, hooks: Hooks) -> None:
    """Gives a block's submodule its tokens in full length, and the block this rank's part of the result."""
    parameters, returned = Parameters(signature_of(module)), names(next(iter(streams.values())))

    def enter(_module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if layout.slot.has_all_tokens:
            return args, kwargs
        values = parameters.name(args, kwargs)
        for name, own in streams.items():
            values[name] = layout.fill(values[name], names(own), 1)
        return parameters.pass_on(values, args, kwargs)

    def leave(_module: torch.nn.Module, _args: tuple, output: torch.Tensor) -> torch.Tensor:
        return output if layout.slot.has_all_tokens else layout.cut(output, returned, 1)

    hooks.before(module, enter, with_kwargs=True)
    hooks.after(module, leave)
