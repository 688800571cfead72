"""Runs several calls of a model at the same time: shares them over groups of ranks, and collects their results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .mesh import Axis
from .mesh_layout import shard_sizes

BATCH_DIM = 0
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)  # that a model's forward may return
NUMBERS = 64  # how many describe an output

Output = torch.Tensor | Sequence[torch.Tensor]
# The forms of outputs that ranks have sent or received along an axis, by sender and kind, as `describe_output` encodes
# them. A description goes before the first output of a kind: to read it, the host waits for the device.
Forms = dict[Hashable, list[int]]


class Call(NamedTuple):
    """The arguments of a model call. The first one is the latents, batch first, or a list of them."""

    args: tuple
    kwargs: dict[str, Any]

    @property
    def latents(self) -> list[torch.Tensor]:
        return tensors_of(self.args[0])

    @property
    def size(self) -> int:
        """The batch size."""
        return len(self.latents[0])

    @property
    def kind(self) -> tuple:
        """What the form of the result depends on, beside the number of rows."""
        return tuple((each.shape, each.dtype) for each in self.latents)


class Part(NamedTuple):
    """The rows of a call that a group runs. rows: the part's index in the call, as an axis that splits its batch."""

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
        (call, Axis(None, count, index))
        for call, size in enumerate(sizes)
        for index, share in enumerate(shard_sizes(size, count))
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
    outputs: Sequence[Output],
    parts: Sequence[Part],
    calls: Sequence[Call],
    axis: Axis,
    device: torch.device,
    forms: Forms,
) -> list[Output] | None:
    """Returns each call's result on the group at index 0, and None on the others.

    outputs: of this group's parts, in order, on the device.
    """
    own, found = iter(outputs), [list[Output]() for _ in calls]
    for part in parts:
        call = calls[part.call]
        own_rows = part.rows.own_size(call.size)
        # A description goes before each output, but not of the first call if the first group runs a part of that call:
        # then it knows the form.
        kind = (own_rows, *call.kind) if part.call or parts[0].group else None
        if axis.index and part.group == axis.index:
            send_output(next(own), axis, forms, kind)
        elif axis.index:
            continue
        elif not part.group:
            found[part.call].append(next(own))
        elif kind is None:
            found[part.call].append(receive_like(outputs[0], own_rows, part.group, axis))
        else:
            found[part.call].append(receive_output(part.group, axis, device, forms, kind))
    return None if axis.index else [_join(each) for each in found]


def _join(parts: Sequence[Output]) -> Output:
    """Joins the rows of a call's parts. A single part stays as it is: a copy would take the device's time."""
    if len(parts) == 1:
        return parts[0]
    joined = [torch.cat(rows, BATCH_DIM) for rows in zip(*map(tensors_of, parts), strict=True)]
    return joined[0] if isinstance(parts[0], torch.Tensor) else joined


def tensors_of(output: Output) -> list[torch.Tensor]:
    return [output] if isinstance(output, torch.Tensor) else list(output)


def send_output(output: Output, axis: Axis, forms: Forms, kind: Hashable | None) -> None:
    """Sends an output to the first group or stage of an axis. kind: None if the other side knows its form. Raises
    RuntimeError if it has another form than the first of its kind."""
    tensors, own, key = tensors_of(output), describe_output(output), (axis.index, kind)
    is_new = kind is not None and key not in forms
    if kind is not None and forms.setdefault(key, own) != own:
        raise RuntimeError("For latents of one shape, the model returned tensors of different shapes or dtypes.")
    with axis.timeline.communication("send"):
        if is_new:
            dist.send(torch.tensor(own, device=tensors[0].device), axis.global_rank(0), group=axis.group)
        for tensor in tensors:
            dist.send(tensor.contiguous(), axis.global_rank(0), group=axis.group)


def receive_output(group: int, axis: Axis, device: torch.device, forms: Forms, kind: Hashable) -> Output:
    """Receives what `send_output` sends."""
    if (group, kind) not in forms:
        description = torch.empty(NUMBERS, dtype=torch.int64, device=device)
        with axis.timeline.communication("receive"):
            dist.recv(description, axis.global_rank(group), group=axis.group)
        forms[group, kind] = description.tolist()
    return receive_into(allocate_output(forms[group, kind], device), group, axis)


def receive_like(like: Output, rows: int, group: int, axis: Axis) -> Output:
    """Receives an output that is not described. like: one of the same form, but with other rows."""
    empty = [tensor.new_empty([rows, *tensor.shape[1:]]) for tensor in tensors_of(like)]
    return receive_into(empty[0] if isinstance(like, torch.Tensor) else empty, group, axis)


def receive_into(output: Output, group: int, axis: Axis) -> Output:
    """Fills an output with what the group's rank sends, and returns it."""
    with axis.timeline.communication("receive"):
        for tensor in tensors_of(output):
            dist.recv(tensor, axis.global_rank(group), group=axis.group)
    return output


def describe_output(output: Output) -> list[int]:
    """Encodes in NUMBERS whether it is one tensor or a list, how many, and the dtype and shape of each."""
    numbers = [int(isinstance(output, torch.Tensor)), len(tensors_of(output))]
    for tensor in tensors_of(output):
        numbers += [DTYPES.index(tensor.dtype), tensor.ndim, *tensor.shape]
    return numbers + [0] * (NUMBERS - len(numbers))


def allocate_output(description: Sequence[int], device: torch.device) -> Output:
    """Allocates the tensors that `describe_output` describes."""
    numbers = iter(description)
    is_one, count, tensors = next(numbers), next(numbers), []
    for _ in range(count):
        dtype, dims = DTYPES[next(numbers)], next(numbers)
        tensors.append(torch.empty([next(numbers) for _ in range(dims)], dtype=dtype, device=device))
    return tensors[0] if is_one else tensors
