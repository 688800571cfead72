"""Several calls of a model at a time: which group of ranks runs what of them, and how the results come together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .mesh import Axis
from .mesh_layout import shard_sizes

BATCH_DIM = 0

Output = torch.Tensor | Sequence[torch.Tensor]


class Call(NamedTuple):
    """What a model is called with. The first argument has the latents, batch first, or several of them."""

    args: tuple
    kwargs: dict[str, Any]

    @property
    def latents(self) -> list[torch.Tensor]:
        first = self.args[0]
        return list(first) if isinstance(first, (list, tuple)) else [first]

    @property
    def size(self) -> int:
        """Of the batch."""
        return len(self.latents[0])


class Part(NamedTuple):
    """Rows of a call that a group runs. rows: their place among the call's parts, as an axis that splits its batch."""

    call: int
    group: int
    rows: Axis


def share_out(sizes: Sequence[int], groups: int) -> list[Part]:
    """The parts of calls with batches of these sizes, the first of them the first group's.

    Each call falls into as few parts as share all of them out evenly, or else into as many as keep the groups busy.
    """
    alike = math.gcd(*sizes)
    even = (count for count in range(1, alike + 1) if not alike % count and not len(sizes) * count % groups)
    count = next(even, max(1, groups // len(sizes)))
    rows = [
        (call, Axis(None, count, place))
        for call, size in enumerate(sizes)
        for place, share in enumerate(shard_sizes(size, count))
        if share
    ]
    return [Part(call, index % groups, axis) for index, (call, axis) in enumerate(rows)]


def collect_calls(
    outputs: Sequence[Output], parts: Sequence[Part], sizes: Sequence[int], axis: Axis
) -> list[Output] | None:
    """What each call gives, for the group at index 0; None for the others. outputs: of this group's parts, in order.

    Of every call they are as many tensors, of as many dims.
    """
    own = iter(outputs)
    if axis.index:
        for part in parts:
            if part.group == axis.index:
                _send(tensors_of(next(own)), part, axis)
        return None
    like = tensors_of(outputs[0])
    found: list[list[list[torch.Tensor]]] = [[] for _ in sizes]
    for part in parts:
        size = part.rows.own_size(sizes[part.call])
        received = _receive(like, size, part, axis) if part.group else tensors_of(next(own))
        found[part.call].append(received)
    joined = [[torch.cat(rows, BATCH_DIM) for rows in zip(*each, strict=True)] for each in found]
    return [each[0] if isinstance(outputs[0], torch.Tensor) else each for each in joined]


def tensors_of(output: Output) -> list[torch.Tensor]:
    return [output] if isinstance(output, torch.Tensor) else list(output)


def _send(tensors: list[torch.Tensor], part: Part, axis: Axis) -> None:
    """To the first group, which knows the shape of the first call's, since it runs a part of that itself."""
    with axis.timeline.communication("send"):
        for tensor in tensors:
            if part.call:
                shape = torch.tensor(tensor.shape, device=tensor.device)
                dist.send(shape, axis.global_rank(0), group=axis.group)
            dist.send(tensor.contiguous(), axis.global_rank(0), group=axis.group)


def _receive(like: list[torch.Tensor], size: int, part: Part, axis: Axis) -> list[torch.Tensor]:
    """What `_send` sends, so many rows. like: a part of the first call."""
    received, rank = [], axis.global_rank(part.group)
    with axis.timeline.communication("receive"):
        for tensor in like:
            shape = [size, *tensor.shape[1:]]
            if part.call:
                told = torch.empty(len(shape), dtype=torch.int64, device=tensor.device)
                dist.recv(told, rank, group=axis.group)
                shape = told.tolist()
            received.append(tensor.new_empty(shape))
            dist.recv(received[-1], rank, group=axis.group)
    return received
