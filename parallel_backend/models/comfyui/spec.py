"""What the engine must know of one of ComfyUI's own model classes, as data: nothing of ComfyUI is imported here.

Streams of tokens have names of our own, "img" and "txt" say. Where tokens of several lie one after the other, their
names are joined by "+", in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..rows import BlockRow

# Of an argument that is a tensor; or of one that is a tuple of them, each item's, None for what is of no stream.
Streams = str | tuple[str | None, ...]
# Of every model and every block of ComfyUI's: a dict of what nodes ask for, of all rows and tokens. A schedule in it
# may be as long as the batch.
ALWAYS_WHOLE = "transformer_options"


@dataclass(frozen=True)
class BlockList:
    """Blocks of a model that run one after the other, and what their arguments mean.

    An argument of a block is named in one of the fields below, or it may not be there: what nobody has seen to it that
    it is cut right is refused.
    """

    # Where the blocks are: a list of modules in the model, or a single one.
    path: str
    # Arguments of tokens, and their streams. A number names one of `*args` by its place.
    tokens: Mapping[str, Streams]
    # What a block returns, likewise.
    returns: Streams
    # The block's submodules whose attention runs over shared tokens, "" for the block itself, and the streams that they
    # attend from and to: "v|a" where queries are of v and keys of a. A tuple has the streams of one call after the
    # other.
    attention: Mapping[str, str | tuple[str, ...]]
    # Linear layers of the block that make other things than queries, keys and values, too: their rows, see
    # `overlap_rows.OTHER`. The others are computed while attention exchanges tokens.
    beside: Mapping[str, str] = field(default_factory=dict)
    # Per-token arguments, or tuples of them: the dim in which tokens run, and their streams. A size of 1 there is for
    # all tokens.
    sides: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    # Arguments that may have an entry for each frame of a stream, in dim 1, or for each token: the stream, and the
    # number of dims that they have then.
    frames: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    # Arguments with an entry for each of the last tokens of a stream: the dim, and the stream. What is joined before
    # those has none.
    last: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    # Arguments that are ranges of tokens, as a list of (start, stop, …).
    ranges: Mapping[str, str] = field(default_factory=dict)
    # Arguments that are the place of a token.
    places: Mapping[str, str] = field(default_factory=dict)
    # Arguments that say how many of a stream's tokens count, from the first on: the argument that has those. The others
    # are left out.
    counts: Mapping[str, str] = field(default_factory=dict)
    # Arguments that may be of a class of the model's own, and what makes of such a one a tensor that the fields above
    # and below are about.
    made: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    # Submodules of `attention` whose mask the block makes itself, of the keys that it has, which are this rank's.
    local_masks: tuple[str, ...] = ()
    # Submodules of `attention` that see only so many tokens to either side, and their attribute that says how many;
    # where it is None, they see all.
    windows: Mapping[str, str] = field(default_factory=dict)
    # Submodules of `attention` that repeat each head of keys and values for the queries' heads that share it, one after
    # the other, before they attend; and their attribute that says how many there are. The others are not sent then.
    kv_heads: Mapping[str, str] = field(default_factory=dict)
    # Submodules that read from a token's place which frame it is of, and which of their arguments have tokens: they get
    # them filled (see `seams/filled/streams.py`). They mix no tokens, and return the first of these streams.
    filled: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Arguments that every rank takes as they are.
    whole: tuple[str, ...] = ()
    # Arguments that a block has and that may not be given: how they would have to be cut is not known.
    refused: tuple[str, ...] = ()
    # Whether they run between those of another list, so that their weights are not fetched in turn.
    woven: bool = False
    # Submodules of blocks that the model reads outside of the blocks, by their paths in the model.
    shared: tuple[str, ...] = ()
    # The dim of tokens; and how many dims they fill, from that one on, where they lie on a grid of (T, H, W).
    dim: int = 1
    grid: int = 1

    @property
    def cut(self) -> set[str]:
        """The arguments of which a rank gets its part."""
        parts = (self.tokens, self.sides, self.frames, self.last, self.ranges, self.places, self.counts)
        return {name for part in parts for name in part}

    def row(self) -> BlockRow:
        """For pipeline stages. Raises StopIteration for a block that returns what is no argument of it."""
        returns = self.returns if isinstance(self.returns, tuple) else (self.returns,)
        returned = tuple(next(name for name, own in self.tokens.items() if own == stream) for stream in returns)
        return BlockRow(self.path, returned, self.shared)


@dataclass(frozen=True)
class HostSpec:
    """A model class of ComfyUI, seen from outside."""

    # Its module and name, as "comfy.ldm.flux.model.Flux".
    model_class: str
    # Its blocks, in the order in which they run.
    blocks: tuple[BlockList, ...] = ()
    # Where the model has the number of its attention's heads: a path of attributes.
    heads: str = ""
    # Where it has the width of all of them, or else of one.
    width: str = ""
    head_dim: str = ""
    # What follows the blocks token by token, as if it were one more: tokens come together behind it, where they are
    # narrow. Without it, they do so behind the last block.
    head: BlockList | None = None
    # Why the rows of a batch cannot be computed apart, if they cannot; and where only some models of the class are so,
    # an attribute that is true of those.
    coupled: str = ""
    coupled_where: str = ""
    # Why its tokens cannot be shared, if they cannot. It needs nothing of the above then.
    unshared: str = ""
    # The stream whose tokens are the latents' patches, row by row, and where the model has their size: PipeFusion can
    # run them patch by patch then.
    patches: tuple[str, str] | None = None
    # Why its blocks cannot be shared out over pipeline stages, if they cannot.
    unstaged: str = ""
    # Whether the first half of its blocks feeds the second, last to first, as "skip".
    skips: bool = False
    # Why a step cache cannot skip its blocks together, if it cannot; what is unstaged cannot either.
    uncached: str = ""

    @property
    def cut(self) -> tuple[BlockList, ...]:
        """What runs on each rank's own tokens."""
        return (*self.blocks, *([self.head] if self.head else []))

    @property
    def in_turn(self) -> tuple[str, ...]:
        """The lists whose blocks run one after the other, once in each forward."""
        return tuple(blocks.path for blocks in self.blocks if not blocks.woven)

    def couples(self, model: object) -> bool:
        """Whether the rows of this model's batch cannot be computed apart."""
        return bool(self.coupled) and (not self.coupled_where or bool(getattr(model, self.coupled_where, True)))


def names(streams: str) -> tuple[str, ...]:
    """The streams that lie one after the other."""
    return tuple(streams.split("+"))


_SPECS: dict[str, HostSpec] = {}


def register(spec: HostSpec, *also: str) -> HostSpec:
    """Adds a class to the registry, and others of the same module or another that are run alike."""
    for name in (spec.model_class, *also):
        _SPECS[name] = spec
    return spec


def host_classes() -> Iterable[str]:
    """ComfyUI's classes that have a spec."""
    return sorted(_SPECS)


def named_spec(model_class: str) -> HostSpec | None:
    """The spec of a class by its module and name."""
    return _SPECS.get(model_class)


def host_spec(model_class: type) -> HostSpec | None:
    """The spec of one of ComfyUI's classes, if there is one; a class derived from one that has is another."""
    return named_spec(f"{model_class.__module__}.{model_class.__qualname__}")
