"""Decides which heads go to which rank of the Ulysses axis, and in which part of the exchange."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import torch


class HeadPart(NamedTuple):
    """The heads that are exchanged, attended to and sent back together, by rank of the axis.

    Several query heads may share one key head (grouped-query attention, https://arxiv.org/abs/2305.13245). A rank gets
    the key heads that its queries need. Two ranks may get the same one.
    """

    queries: tuple[range, ...]
    keys: tuple[range, ...]


@functools.cache
def head_parts(sizes: tuple[int, ...], group: int, most: int) -> tuple[HeadPart, ...]:
    """Splits the heads into `most` parts or fewer, alike on every rank. A rank may have no heads in a part.

    sizes: the query heads by rank.
    group: how many query heads share a key head. Each key head of a rank is in one part only.
    """
    ends = [0, *itertools.accumulate(sizes)]
    queries = [range(start, stop) for start, stop in itertools.pairwise(ends)]
    keys = [range(own.start // group, -(-own.stop // group)) if own else range(0) for own in queries]
    count = max(1, min(most, max(map(len, keys))))
    parts = []
    for part in range(count):
        of_keys = [own[within.start : within.stop] for own in keys for within in [part_range(len(own), part, count)]]
        of_queries = [
            range(max(own.start, group * of.start), min(own.stop, group * of.stop)) if of else range(0)
            for own, of in zip(queries, of_keys, strict=True)
        ]
        parts.append(HeadPart(tuple(of_queries), tuple(of_keys)))
    return tuple(parts)


def part_range(size: int, part: int, count: int) -> range:
    """Returns which of `size` heads are in a part. Parts are as even as possible. Those in the middle are the larger
    ones, because ranks wait for the first part to arrive and for the last one to leave."""
    middle_first = sorted(range(count), key=lambda part: abs(2 * part - count + 1))
    sizes = [size // count + (middle_first.index(part) < size % count) for part in range(count)]
    start = sum(sizes[:part])
    return range(start, start + sizes[part])


def repeat_heads(kv_BhKD: torch.Tensor, queries: range, keys: range, group: int) -> torch.Tensor:
    """Repeats each key or value head for the query heads that share it, for kernels without groups.

    It slices, because an index would have to be made on the device.
    """
    if group == 1:
        return kv_BhKD
    counts = [min(queries.stop, group * (key + 1)) - max(queries.start, group * key) for key in keys]
    if len(set(counts)) == 1:
        return kv_BhKD.repeat_interleave(counts[0], 1)
    pieces = zip(kv_BhKD.unbind(1), counts, strict=True)
    return torch.cat([each.unsqueeze(1).expand(-1, count, -1, -1) for each, count in pieces], 1)
