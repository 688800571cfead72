"""What the engine must know of a model class, as data. It imports no library of models.

Token streams have our own names, such as "img" and "txt". If a tensor has the tokens of several streams one after the
other, their names are joined by "+" in that order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..errors import UnknownModelError
from ..hooks import Hooks
from .bands import Bands

# An argument's stream; for a tuple, one per item (None: no tokens).
Streams = str | tuple[str | None, ...]
# This dict of nodes' options goes to every model and block. It is for all rows and tokens. A schedule in it may be as
# long as the batch.
ALWAYS_WHOLE = "transformer_options"
# Its entries with where the image begins and ends in a stream that has a text, too; and with what changes blocks.
IMAGE_PLACES = "img_slice"
PATCH_OPTIONS = ("patches", "patches_replace")
CONTROL = "control"  # the model's argument with what networks beside it add to its tokens
SKIPS = "they skip from the first half to the second"  # why some blocks are not split into stages
OTHER = "+"  # rows of a linear layer that are not for queries, keys or values
FULL_LENGTH, LOCAL, GATHERED = "full length", "local", "gathered"  # see `seams/layout.py`


class ByFrame(NamedTuple):
    """An argument that may have an entry for each frame of a stream in dim 1, or for each token. ndim: of its dims
    then."""

    ndim: int
    stream: str


class Last(NamedTuple):
    """An argument with an entry for each of the last tokens of a stream."""

    dim: int
    stream: str


class Kept(NamedTuple):
    """The argument with the keys and values of tokens that came before the others, and their number: (BHND, BHND, N),
    which every rank has whole. The block joins them with the fresh ones, which follow. A call without them runs whole
    on every rank.

    drop: the method by which the model drops what it keeps from call to call. All ranks drop it before a sampling and
    with each plan. So they have kept the same, and take the same way through the model. stream: of the fresh ones."""

    drop: str
    stream: str


class Places(NamedTuple):
    """The place of a token, or ranges of tokens: a list of (start, stop, …). A tensor there has an entry for each."""

    streams: str


# How an argument depends on tokens. Most have an entry for each token: the dim in which tokens run, and their streams.
# The value may be a tuple or list of tensors; with a tuple of streams, each item has its own. A size of 1 there is for
# all tokens.
Side = tuple[int, Streams] | ByFrame | Last | Kept | Places


@dataclass(frozen=True)
class BlockList:
    """Blocks of a model that run one after the other, and the meaning of their arguments.

    Every argument of a block must be listed in one of the fields below. An unlisted one raises RequestError, because we
    do not know how to shard it.
    """

    # The path of a list of modules in the model, or of a single module, or of several: "*" stands for a part of a name.
    path: str
    # Arguments with tokens, and their streams. A number names one of `*args` by its place. A block may lack
    # an argument whose streams another one has, too.
    tokens: Mapping[str, Streams]
    # The streams that a block returns, in order. None if what it returns stays as it is.
    returns: Streams | None
    # The block's submodules in which tokens attend to tokens, "" for the block itself, and the streams that attend:
    # "v|a" where queries are of v and keys of a. A tuple has the streams of one call after the other. A submodule that
    # only some blocks have is listed, too.
    attention: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    # Layers of an MLP that reads the same input as attention, if the block reads the MLP's output after attention: "+"
    # for a layer of the MLP alone, "qkv+" if rows for queries, keys and values come first. The MLP's rows are computed
    # while attention exchanges tokens.
    parallel_mlp: Mapping[str, str] = field(default_factory=dict)
    # Arguments that depend on tokens, such as rotary embeddings.
    sides: Mapping[str, Side] = field(default_factory=dict)
    # Functions of an argument, and of all `values` by name. They return what the other fields describe: a tensor in
    # place of the model's own class, or the tokens that count.
    converters: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    # Submodules of `attention` whose mask the block makes from its own side arguments, so it covers this rank's keys.
    # The mask is the same in all blocks of a forward. If they see a limited number of tokens to either side, their
    # attribute for that number; if it is None, they see all tokens.
    local_masks: Mapping[str, str] = field(default_factory=dict)
    # Submodules that derive a token's frame from its place, with their arguments that have tokens. They get these in
    # full length (see `seams/layout.py`). They mix no tokens, and return the first of these streams.
    full_length: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Arguments that every rank takes as they are.
    whole: tuple[str, ...] = ()
    # Arguments that a block has but nobody may pass, because we do not know how to shard them.
    refused: tuple[str, ...] = ()
    # Whether these blocks run between those of another list. Then their weights are not fetched in turn.
    interleaved: bool = False
    # How streams are between these blocks, or before a `head`. LOCAL: the model passes what a block returns to the next
    # one of the list unchanged, so nothing is copied; before a head, it works token by token. GATHERED: all ranks need
    # what the blocks return.
    between: str = FULL_LENGTH
    # The dim of tokens. A video's may fill several dims, from that one on.
    dim: int = 1

    @property
    def sharded(self) -> set[str]:
        """The arguments of which a rank gets its part."""
        return {*self.tokens, *self.sides}

    @property
    def kept(self) -> str:
        """The argument with the keys that are kept, if the blocks have one."""
        return next((name for name, side in self.sides.items() if isinstance(side, Kept)), "")

    @property
    def returned(self) -> tuple[str, ...]:
        """Returns the arguments that a block returns, in order. Raises StopIteration if it returns something that is no
        argument."""
        if isinstance(self.returns, tuple) and self.returns in self.tokens.values():  # one argument has them all
            return (next(name for name, own in self.tokens.items() if own == self.returns),)
        returns = self.returns if isinstance(self.returns, tuple) else (self.returns,)
        return tuple(next(name for name, own in self.tokens.items() if own == stream) for stream in returns)


@dataclass(frozen=True)
class ModelSpec:
    """A model class, as seen from outside."""

    # Its module and name. A class of diffusers has its name alone.
    model_class: str
    # Its blocks, in running order.
    blocks: tuple[BlockList, ...] = ()
    # What follows the blocks token by token, as if it were one more block. Tokens are gathered after it, because they
    # are narrow there. Without a head, they are gathered after the last block.
    head: BlockList | None = None
    # Why the rows of a batch cannot be computed separately, if they cannot. See `couples`.
    coupled: str = ""
    # Why its tokens cannot be shared, if they cannot. Then blocks are listed only to be shared as stages.
    unshared: str = ""
    # For a network that runs inside of another model's forward: by its stream, the model's stream whose first tokens it
    # matches. A rank has the same tokens of both. A stream with the name of one of that model's is the same stream.
    # Nothing is gathered after its blocks, unless a list says so.
    inside: Mapping[str, str] | None = None
    # How ranks share a picture of a class that convolves over it. Its blocks are not listed.
    bands: Bands | None = None
    # The stream whose tokens are the latents' patches, row by row. PipeFusion can run it patch by patch. Without such a
    # stream, PipeFusion has one patch.
    image: str = ""
    # Why its blocks cannot be split into pipeline stages, if they cannot.
    unstaged: str = ""
    # Submodules of blocks that the model reads outside of the blocks, by their paths in it. All stages have them.
    shared: tuple[str, ...] = ()
    # Arguments of which the model takes the first row for all rows of a call. A model that keeps keys may find them by
    # an argument's identity, so equal ones are the same tensor in a sampling.
    unsplit: tuple[str, ...] = ()
    # The hook for odd classes: changes how the model computes, until the hooks are removed.
    prepare: Callable[[Any, Hooks], None] | None = None

    @property
    def is_diffusers(self) -> bool:
        return "." not in self.model_class

    @property
    def attends(self) -> bool:
        """Whether the spec says where tokens attend to tokens."""
        return bool(self.bands) or any(blocks.attention for blocks in self.blocks)

    @property
    def drops(self) -> str:
        """The method by which the model drops the keys that it keeps, if it keeps some."""
        sides = (side for blocks in self.blocks for side in blocks.sides.values())
        return next((side.drop for side in sides if isinstance(side, Kept)), "")

    @property
    def sharded(self) -> tuple[BlockList, ...]:
        """What runs on each rank's own tokens."""
        return (*self.blocks, *([self.head] if self.head else []))

    def paths(self, model: torch.nn.Module) -> tuple[str, ...]:
        """Returns the lists whose blocks run one after the other, once per forward. Their weights can be fetched."""
        of_layers = self.bands.layer_lists(model) if self.bands else ()
        return (*(blocks.path for blocks in self.blocks if not blocks.interleaved), *of_layers)

    def couples(self, model: torch.nn.Module) -> bool:
        """Whether the rows of this model's batch depend on each other. Of a class with `Bands.over_time`, only those of
        models with such modules do."""
        if not self.coupled or not self.bands or not self.bands.over_time:
            return bool(self.coupled)
        return any({*path.split(".")} & {*self.bands.over_time} for path, _ in model.named_modules())


def single_stream(path: str, argument: str, attention: str, *, stream: str = "x", **others: Any) -> BlockList:
    """Returns blocks that take and return one stream, by the argument that has it and the submodule that attends."""
    return BlockList(path, {argument: stream}, returns=stream, attention={attention: stream}, **others)


def names(streams: str) -> tuple[str, ...]:
    """Returns the streams of a joined name."""
    return tuple(streams.split("+"))


SPECS: dict[str, ModelSpec] = {}


def register(spec: ModelSpec, *also: str) -> ModelSpec:
    """Adds a class to the registry, and others that run alike."""
    for name in (spec.model_class, *also):
        SPECS[name] = spec
    return spec


def register_class(model_class: str, *blocks: BlockList, also: tuple[str, ...] = (), **others: Any) -> ModelSpec:
    """Adds a class by its blocks, and others that run alike."""
    return register(ModelSpec(model_class, blocks, **others), *also)


def spec_named(model_class: str) -> ModelSpec | None:
    """Returns the spec of a class by its name, see `ModelSpec.model_class`."""
    return SPECS.get(model_class)


def model_classes() -> list[str]:
    """Returns the diffusers classes of transformers that have a spec."""
    return sorted(name for name, spec in SPECS.items() if spec.is_diffusers and not spec.bands)


def known_spec(model_class: str) -> ModelSpec:
    """Returns the spec of a diffusers class. Raises UnknownModelError if there is none."""
    if model_class not in SPECS:
        raise UnknownModelError(
            f"No spec for the transformer class {model_class}; supported are {', '.join(model_classes())}.",
            "The manual parallel_backend/models/README.md says how to add one.",
        )
    return SPECS[model_class]


def spec_of(model_class: type) -> ModelSpec | None:
    """Returns the spec of a class, if there is one. A subclass of a class with a spec is another class."""
    module, name = model_class.__module__, model_class.__qualname__
    return spec_named(name if module.startswith("diffusers.") else f"{module}.{name}")


def signature_of(module: torch.nn.Module) -> inspect.Signature:
    """Returns what a module's forward takes. A layer of peft takes what the layer takes that it adds an adapter to."""
    while isinstance(adapted := getattr(module, "base_layer", None), torch.nn.Module):
        module = adapted
    return inspect.signature(module.forward)
