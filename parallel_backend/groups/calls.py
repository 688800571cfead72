"""Several calls of a model at a time: which group of ranks runs what of them, and how the results come together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .mesh import Axis
from .mesh_layout import shard_sizes

BATCH_DIM = 0
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)  # that a model's forward returns
TOLD = 64  # numbers, by which what a part gives is told

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


def share_out(sizes: Sequence[int], groups: Axis) -> list[Part]:
    """The parts of calls with batches of these sizes, in their order.

    Each call falls into as few parts as share all of them out evenly, or else into as many as keep the groups busy.
    Groups of different speed have as many rows of all calls in turn as is theirs; the slowest may have none.
    """
    if groups.shares:
        return _share_out_by_speed(sizes, groups)
    alike = math.gcd(*sizes)
    even = (count for count in range(1, alike + 1) if not alike % count and not len(sizes) * count % groups.degree)
    count = next(even, max(1, groups.degree // len(sizes)))
    rows = [
        (call, Axis(None, count, place))
        for call, size in enumerate(sizes)
        for place, share in enumerate(shard_sizes(size, count))
        if share
    ]
    return [Part(call, index % groups.degree, axis) for index, (call, axis) in enumerate(rows)]


def _share_out_by_speed(sizes: Sequence[int], groups: Axis) -> list[Part]:
    owners = [group for group, share in enumerate(groups.sizes(sum(sizes))) for _ in range(share)]
    parts, start = [], 0
    for call, size in enumerate(sizes):
        counts = Counter(owners[start : start + size])
        shares = tuple(map(float, counts.values()))
        parts += [Part(call, group, Axis(None, len(counts), at, shares=shares)) for at, group in enumerate(counts)]
        start += size
    return parts


def collect_calls(
    outputs: Sequence[Output], parts: Sequence[Part], sizes: Sequence[int], axis: Axis, device: torch.device
) -> list[Output] | None:
    """What each call gives, for the group at index 0; None for the others. outputs: of this group's parts, in order,
    on the device."""
    own = iter(outputs)
    if axis.index:
        for part in parts:
            if part.group == axis.index:
                _send(next(own), is_told(part, parts), axis)
        return None
    found: list[list[Output]] = [[] for _ in sizes]
    for part in parts:
        if not part.group:
            found[part.call].append(next(own))
            continue
        like = None if is_told(part, parts) else outputs[0]
        found[part.call].append(_receive(like, part.rows.own_size(sizes[part.call]), part.group, axis, device))
    return [_joined(each) for each in found]


def is_told(part: Part, parts: Sequence[Part]) -> bool:
    """Whether the first group is told what a part gives: of the first call it knows, if it runs some of that."""
    return bool(part.call or parts[0].group)


def _joined(parts: Sequence[Output]) -> Output:
    """A call's result, of those of its parts."""
    joined = [torch.cat(rows, BATCH_DIM) for rows in zip(*map(tensors_of, parts), strict=True)]
    return joined[0] if isinstance(parts[0], torch.Tensor) else joined


def tensors_of(output: Output) -> list[torch.Tensor]:
    return [output] if isinstance(output, torch.Tensor) else list(output)


def _send(output: Output, told: bool, axis: Axis) -> None:
    """To the first group. told: with what it is made of before it."""
    tensors = tensors_of(output)
    with axis.timeline.communication("send"):
        if told:
            dist.send(described(output).to(tensors[0].device), axis.global_rank(0), group=axis.group)
        for tensor in tensors:
            dist.send(tensor.contiguous(), axis.global_rank(0), group=axis.group)


def _receive(like: Output | None, rows: int, group: int, axis: Axis, device: torch.device) -> Output:
    """What `_send` sends. like: so many rows of the same; None where it is told."""
    rank = axis.global_rank(group)
    with axis.timeline.communication("receive"):
        if like is None:
            told = torch.empty(TOLD, dtype=torch.int64, device=device)
            dist.recv(told, rank, group=axis.group)
            received = empty_as(told.tolist(), device)
        else:
            empty = [tensor.new_empty([rows, *tensor.shape[1:]]) for tensor in tensors_of(like)]
            received = empty[0] if isinstance(like, torch.Tensor) else empty
        for tensor in tensors_of(received):
            dist.recv(tensor, rank, group=axis.group)
    return received


def described(output: Output) -> torch.Tensor:
    """Whether it is a tensor or several, how many, and the dtype and shape of each, in numbers."""
    numbers = [int(isinstance(output, torch.Tensor)), len(tensors_of(output))]
    for tensor in tensors_of(output):
        numbers += [DTYPES.index(tensor.dtype), tensor.ndim, *tensor.shape]
    return torch.tensor(numbers + [0] * (TOLD - len(numbers)))


def empty_as(told: Sequence[int], device: torch.device) -> Output:
    """What `described` tells of, without values."""
    numbers = iter(told)
    is_one, count, tensors = next(numbers), next(numbers), []
    for _ in range(count):
        dtype, dims = DTYPES[next(numbers)], next(numbers)
        tensors.append(torch.empty([next(numbers) for _ in range(dims)], dtype=dtype, device=device))
    return tensors[0] if is_one else tensors
