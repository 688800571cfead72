"""Runs several calls of a model at the same time: shares them over groups of ranks, and collects their results."""

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
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)  # that a model's forward may return
NUMBERS = 64  # how many describe an output

Output = torch.Tensor | Sequence[torch.Tensor]


class Call(NamedTuple):
    """The arguments of a model call. The first one is the latents, batch first, or a list of them."""

    args: tuple
    kwargs: dict[str, Any]

    @property
    def latents(self) -> list[torch.Tensor]:
        first = self.args[0]
        return list(first) if isinstance(first, (list, tuple)) else [first]

    @property
    def size(self) -> int:
        """The batch size."""
        return len(self.latents[0])


class Part(NamedTuple):
    """The rows of a call that a group runs. rows: the part's place in the call, as an axis that splits its batch."""

    call: int
    group: int
    rows: Axis


def share_out(sizes: Sequence[int], groups: Axis) -> list[Part]:
    """Splits calls with these batch sizes into parts, in the order of the calls.

    Each call is split into the fewest parts with which all groups get the same number; if there is no such number, into
    enough parts to keep the groups busy. Groups of different speed get rows of all calls in proportion to their speed;
    the slowest may get none.
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
    """Returns each call's result on the group at index 0, and None on the others.

    outputs: of this group's parts, in order, on the device.
    """
    own = iter(outputs)
    if axis.index:
        for part in parts:
            if part.group == axis.index:
                send_output(next(own), is_described(part, parts), axis)
        return None
    found: list[list[Output]] = [[] for _ in sizes]
    for part in parts:
        if not part.group:
            found[part.call].append(next(own))
            continue
        like = None if is_described(part, parts) else outputs[0]
        found[part.call].append(receive_output(like, part.rows.own_size(sizes[part.call]), part.group, axis, device))
    return [_join(each) for each in found]


def is_described(part: Part, parts: Sequence[Part]) -> bool:
    """Whether a description goes before a part's output. The first group knows the first call's output if it runs a
    part of it."""
    return bool(part.call or parts[0].group)


def _join(parts: Sequence[Output]) -> Output:
    """Joins the outputs of a call's parts."""
    joined = [torch.cat(rows, BATCH_DIM) for rows in zip(*map(tensors_of, parts), strict=True)]
    return joined[0] if isinstance(parts[0], torch.Tensor) else joined


def tensors_of(output: Output) -> list[torch.Tensor]:
    return [output] if isinstance(output, torch.Tensor) else list(output)


def send_output(output: Output, described: bool, axis: Axis) -> None:
    """Sends an output to the first group or stage of an axis. described: sends its description first."""
    tensors = tensors_of(output)
    with axis.timeline.communication("send"):
        if described:
            dist.send(describe_output(output).to(tensors[0].device), axis.global_rank(0), group=axis.group)
        for tensor in tensors:
            dist.send(tensor.contiguous(), axis.global_rank(0), group=axis.group)


def receive_output(like: Output | None, rows: int, group: int, axis: Axis, device: torch.device) -> Output:
    """Receives what `send_output` sends. like: an output of the same form; None if a description comes first."""
    rank = axis.global_rank(group)
    with axis.timeline.communication("receive"):
        if like is None:
            description = torch.empty(NUMBERS, dtype=torch.int64, device=device)
            dist.recv(description, rank, group=axis.group)
            received = allocate_output(description.tolist(), device)
        else:
            empty = [tensor.new_empty([rows, *tensor.shape[1:]]) for tensor in tensors_of(like)]
            received = empty[0] if isinstance(like, torch.Tensor) else empty
        for tensor in tensors_of(received):
            dist.recv(tensor, rank, group=axis.group)
    return received


def describe_output(output: Output) -> torch.Tensor:
    """Encodes in numbers whether it is one tensor or a list, how many, and the dtype and shape of each."""
    numbers = [int(isinstance(output, torch.Tensor)), len(tensors_of(output))]
    for tensor in tensors_of(output):
        numbers += [DTYPES.index(tensor.dtype), tensor.ndim, *tensor.shape]
    return torch.tensor(numbers + [0] * (NUMBERS - len(numbers)))


def allocate_output(description: Sequence[int], device: torch.device) -> Output:
    """Allocates the tensors that `describe_output` describes."""
    numbers = iter(description)
    is_one, count, tensors = next(numbers), next(numbers), []
    for _ in range(count):
        dtype, dims = DTYPES[next(numbers)], next(numbers)
        tensors.append(torch.empty([next(numbers) for _ in range(dims)], dtype=dtype, device=device))
    return tensors[0] if is_one else tensors
