"""Which tokens of the running forward this rank holds.

The image's tokens are split into patches: one, or those of PipeFusion. The first patch has all tokens of the other
streams, too. Each patch is shared over the sequence axis on its own. So a rank holds the same tokens of a patch whether
the patch runs alone or with the others, and its stale keys and values stay in place.

Within blocks a stream is *local*: this rank's tokens. Elsewhere it has its *full length*: this rank's tokens are in
their places, and the others are zeros. So the model's code there (slices, joins, sums) runs as it is. If a rank has no
token of a stream, the stream gets one token of padding within blocks, because models do not expect empty streams.
Nothing attends to padding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from operator import itemgetter
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import torch

from ..errors import RequestError
from ..groups.collectives import gather
from ..groups.mesh import Axis
from ..groups.mesh_layout import shard_sizes
from .forward import Forward, ForwardSlot

Names = tuple[str, ...]
Given = ParamSpec("Given")
Counted = TypeVar("Counted")


class PatchTokens(NamedTuple):
    """What a patch has of joined streams: where it begins among their tokens, and how many of them each rank holds."""

    start: int
    sizes: Sequence[int]
    runs: bool


class TokenRange(NamedTuple):
    """This rank's tokens of one patch: where they begin among all tokens of the joined streams, and among its own."""

    whole: int
    local: int
    length: int
    is_padding: bool = False


def once_a_forward(
    count: Callable[Concatenate[TokenLayout, Given], Counted],
) -> Callable[Concatenate[TokenLayout, Given], Counted]:
    """Keeps what a method counts until the forward ends, since a length that is known does not change."""

    @functools.wraps(count)
    def counted(layout: TokenLayout, *args: Given.args, **kwargs: Given.kwargs) -> Counted:
        known, key = layout.slot.forward.known, (count, *args, *kwargs.values())
        if key not in known:  # not `Forward.once`: blocks ask often, and each call of Python takes the host's time
            known[key] = count(layout, *args, **kwargs)
        return known[key]

    return counted


# A tensor and the field of its spec, for an error.
Said = tuple[str, str]
SPEC: Said = ("A tensor", "its spec")


class TokenLayout:
    """The lengths of the streams in the running forward, patch by patch, and this rank's share of them.

    Lengths are learned from the blocks' arguments.
    image: the stream that has tokens in all patches.
    axis: the sequence axis.
    slot: holds the forward.
    """

    def __init__(self, image: str, axis: Axis, slot: ForwardSlot) -> None:
        self.image = image
        self.axis = axis
        self.slot = slot
        self.starts: Mapping[str, str] = {}  # streams of networks, see `ModelSpec.inside`

    @property
    def forward(self) -> Forward:
        """The running forward."""
        return self.slot.forward

    def learn(self, streams: Names, length: int, said: Said = SPEC) -> None:
        """Learns that the streams have this many tokens together. At most one stream may be new. Raises RequestError
        if that contradicts what is known, and for an image that cannot be split into patches."""
        known, lengths, patches = self.forward.known, self.forward.lengths, self.slot.patches
        if known.get((TokenLayout.learn, streams)) == length:
            return
        unknown = [name for name in streams if name not in lengths]
        rest = length - sum(sum(lengths[name]) for name in streams if name in lengths)
        if len(unknown) > 1 or rest < 0 or (rest and not unknown):
            what, field = said
            raise RequestError(
                f"{what} has {length} tokens, and {field} says {'+'.join(streams)}; known lengths are {lengths}.",
                "Correct its streams, as parallel_backend/models/README.md says, or use ulysses=1 and ring=1.",
            )
        for name in unknown:
            # The image's tokens are in all patches, evenly, and all others are in the first one.
            lengths[name] = shard_sizes(rest, patches) if name == self.image else [rest, *[0] * (patches - 1)]
            if name == self.image and patches > 1 and self.forward.image_tokens not in (None, rest):
                raise RequestError(
                    f"PipeFusion's patches need the image's {self.forward.image_tokens} tokens alone, but here they "
                    f"come with reference images or padding, {rest} tokens in all.",
                    "Use patches=1, or ulysses, ring, cfg or dp in place of pipefusion.",
                )
        known[TokenLayout.learn, streams] = length

    @once_a_forward
    def total(self, streams: Names) -> int:
        """Returns the tokens of these streams on all ranks."""
        return sum(sum(self.forward.lengths[name]) for name in streams)

    @once_a_forward
    def sizes(self, stream: str, patch: int) -> Sequence[int]:
        """Returns how many tokens of a stream in a patch each rank of the sequence axis holds."""
        length = self.forward.lengths[stream][patch]
        if stream not in self.starts:
            return self.axis.sizes(length)
        found = []
        for size in self.sizes(self.starts[stream], patch):
            found.append(min(size, length - sum(found)))
        return found

    @once_a_forward
    def list_patches(self, streams: Names, every: bool = False) -> list[PatchTokens]:
        """Returns what the running patches have of these streams, or every patch, stream by stream."""
        found, start = [], 0
        for name in streams:
            for index, length in enumerate(self.forward.lengths[name]):
                found.append(PatchTokens(start, self.sizes(name, index), index in self.forward.running))
                start += length
        return [each for each in found if every or each.runs]

    @once_a_forward
    def lengths_by_rank(self, streams: Names, every: bool = False) -> list[int]:
        """Returns the tokens of these streams together, by rank, for the running patches or for every one."""
        sizes = [each.sizes for each in self.list_patches(streams, every)]
        return [sum(of_rank) for of_rank in zip(*sizes, strict=True)]

    @once_a_forward
    def local_ranges(self, streams: Names) -> list[TokenRange]:
        """Returns what blocks get on this rank, patch by patch, with padding."""
        found: list[TokenRange] = []
        start = local = 0
        for name in streams:
            before = local
            for patch in self.list_patches((name,)):
                own, before_own = patch.sizes[self.axis.index], sum(patch.sizes[: self.axis.index])
                found.append(TokenRange(start + patch.start + before_own, local, own))
                local += own
            if local == before and self.total((name,)):
                found.append(TokenRange(start, local, 1, is_padding=True))
                local += 1
            start += self.total((name,))
        return found

    @once_a_forward
    def token_ranges(self, streams: Names) -> list[TokenRange]:
        """Returns this rank's tokens, patch by patch, without padding."""
        return [each for each in self.local_ranges(streams) if not each.is_padding]

    @once_a_forward
    def count_local(self, streams: Names) -> int:
        """Returns how many tokens of these streams blocks get on this rank, with padding."""
        return sum(each.length for each in self.local_ranges(streams))

    def is_padded(self, streams: Names) -> bool:
        """Whether blocks get padding on this rank."""
        return len(self.token_ranges(streams)) < len(self.local_ranges(streams))

    def local_length(self, lengths: list[int], running: list[int]) -> int:
        """Returns how many tokens blocks get on this rank, of a stream with these lengths by patch, when these
        patches run."""
        own = sum(self.axis.sizes(lengths[index])[self.axis.index] for index in running)
        return own or min(1, sum(lengths))

    def is_local(self, streams: Names, length: int) -> bool:
        """Whether this many tokens are what blocks get on this rank. It may be the full length, too; then both are the
        same."""
        return self.forward.lengths.keys() >= set(streams) and length == self.count_local(streams)

    def describe_local(self) -> str:
        """Returns in words how many tokens of each stream blocks get on this rank."""
        sizes = {name: self.count_local((name,)) for name in self.forward.lengths}
        return ", ".join(f"{size} of {name}" for name, size in sizes.items()) or "no streams"

    def drop_padding(self, local: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """Returns a local tensor without padding."""
        if not self.is_padded(streams):
            return local
        return torch.cat([local.narrow(dim, each.local, each.length) for each in self.token_ranges(streams)], dim)

    def put_padding(self, own: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """The inverse of `drop_padding`, with zeros."""
        if not self.is_padded(streams):
            return own
        ranges = self.local_ranges(streams)
        shape = [*own.shape[:dim], 1, *own.shape[dim + 1 :]]
        parts = iter(own.split([each.length for each in ranges if not each.is_padding], dim))
        return torch.cat([own.new_zeros(shape) if each.is_padding else next(parts) for each in ranges], dim)

    def cut(self, whole: torch.Tensor, streams: Names, dim: int, said: Said = SPEC) -> torch.Tensor:
        """Returns this rank's tokens of joined streams of full length, with padding. said: for the error."""
        self.learn(streams, whole.shape[dim], said)
        parts = [whole.narrow(dim, each.whole, each.length) for each in self.local_ranges(streams)]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, dim)

    def cut_last(self, values: torch.Tensor, stream: str, dim: int) -> torch.Tensor:
        """Returns this rank's entries of a tensor with an entry for each of a stream's last tokens."""
        before = self.total((stream,)) - values.shape[dim]
        ranges = [(each.whole - before, each.whole + each.length - before) for each in self.token_ranges((stream,))]
        parts = [values.narrow(dim, max(start, 0), max(stop, 0) - max(start, 0)) for start, stop in ranges]
        return torch.cat(parts, dim) if parts else values.narrow(dim, 0, 0)

    def fill(self, local: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """The inverse of `cut`: full length, with zeros for other ranks' tokens."""
        whole = self.zeros(local, streams, dim)
        for each in self.token_ranges(streams):
            whole.narrow(dim, each.whole, each.length).copy_(local.narrow(dim, each.local, each.length))
        return whole

    def gather(self, local: torch.Tensor, streams: Names, dim: int, place: object = None) -> torch.Tensor:
        """Returns the streams in full length with every rank's tokens of the running patches, on every rank. Patches
        that do not run are zeros, or what they were when they ran at this place of the model in the same step."""
        ranges = [(each.start, sum(each.sizes)) for each in self.list_patches(streams)]
        parts = [local.narrow(dim, each.local, each.length) for each in self.token_ranges(streams)]
        found = [gather(part, dim, length, self.axis) for part, (_, length) in zip(parts, ranges, strict=True)]
        kept = None if place is None else self.forward.finished
        if kept is None and len(found) == 1 and ranges[0] == (0, self.total(streams)):
            return found[0].contiguous()
        whole = self.zeros(local, streams, dim) if kept is None or place not in kept else kept[place]
        for part, (start, length) in zip(found, ranges, strict=True):
            whole.narrow(dim, start, length).copy_(part)
        if kept is not None:
            kept[place] = whole
            return whole.clone()  # the model may write into it
        return whole

    def zeros(self, local: torch.Tensor, streams: Names, dim: int) -> torch.Tensor:
        """Returns zeros in the full length of these streams, in other respects like a local tensor."""
        return local.new_zeros([*local.shape[:dim], self.total(streams), *local.shape[dim:][1:]])

    def cut_ranges(self, ranges: Sequence[Sequence[int]], streams: Names) -> list[tuple[int, ...]]:
        """Turns ranges (start, stop, …) of the joined streams into ranges of this rank's tokens. A stop of None is the
        end. A tensor behind them has an entry for each token of the range."""
        found = []
        for own in self.token_ranges(streams):
            end = own.whole + own.length
            for start, stop, *rest in ranges:
                first, last = max(start, own.whole), min(end if stop is None else stop, end)
                if first < last:
                    shift = own.local - own.whole
                    own_rest = (each[first - start : last - start] if torch.is_tensor(each) else each for each in rest)
                    found.append((first + shift, last + shift, *own_rest))
        return sorted(found, key=itemgetter(0))

    def cut_position(self, position: int, streams: Names) -> int:
        """Returns how many of this rank's tokens come before a position in the joined streams."""
        return sum(min(max(position - each.whole, 0), each.length) for each in self.local_ranges(streams))

    @once_a_forward
    def token_order(self, streams: Names, ranks: range, every: bool, device: torch.device) -> torch.Tensor:
        """Returns the positions of these ranks' tokens in the whole joined streams, in rank order, for the running
        patches or for every one. It is computed on the device, once per forward, because a copy from the host would
        make the host wait."""
        found = []
        for rank, patch in product(ranks, self.list_patches(streams, every)):
            start = patch.start + sum(patch.sizes[:rank])
            found.append(torch.arange(start, start + patch.sizes[rank], device=device))
        return torch.cat(found)

    @once_a_forward
    def cache_ranges(self, streams: Names, ranks: range) -> list[tuple[int, int]]:
        """Returns the ranges (start, length) of the running patches' tokens among all patches' tokens of these ranks.
        The order is rank by rank, then stream by stream, then patch by patch."""
        ranges, start = [], 0
        for rank, patch in product(ranks, self.list_patches(streams, every=True)):
            if patch.runs:
                ranges.append((start, patch.sizes[rank]))
            start += patch.sizes[rank]
        return ranges
