"""Collectives over shards of unequal length, on gloo and NCCL alike. The axis defines how it splits a dim."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .handshake import ALL_GATHER
from .mesh import Axis

Number = TypeVar("Number", int, float)
Message = tuple[torch.Tensor, int]  # with the index of the other rank on an axis


def gather(local: torch.Tensor, dim: int, size: int, axis: Axis) -> torch.Tensor:
    """Returns the whole tensor, of `size` along `dim`, on every rank.

    An all-gather takes the same length from each rank, so shorter shares are padded. The ranks with the longest send no
    more than they would otherwise, and the others wait for them.
    """
    if axis.degree == 1 or not size:
        return local
    sizes, send = axis.sizes(size), local.movedim(dim, 0).contiguous()
    longest = max(sizes)
    if len(send) < longest:
        send = torch.cat((send, send.new_zeros((longest - len(send), *send.shape[1:]))))
    received = send.new_empty((axis.degree * longest, *send.shape[1:]))
    with axis.timeline.communication("all_gather"):
        getattr(dist, ALL_GATHER)(received, send, group=axis.group)
    if min(sizes) == longest:
        return received.movedim(0, dim)
    shares = received.split(longest)
    return torch.cat([share[:length] for share, length in zip(shares, sizes, strict=True)]).movedim(0, dim)


def collect(local: torch.Tensor, dim: int, size: int, axis: Axis, scale: int = 1) -> torch.Tensor | None:
    """Like `gather`, but point to point: returns the whole tensor on the rank at index 0, and None on the others.

    scale: the entries along `dim` for each of `size`. At any time, only one share exists twice in memory.
    """
    if axis.degree == 1:
        return local
    if axis.index:
        if local.shape[dim]:
            with axis.timeline.communication("send"):
                dist.send(local.contiguous(), axis.global_rank(0), group=axis.group)
        return None
    shape = list(local.shape)
    shape[dim] = size * scale
    whole = local.new_empty(shape)
    for index, share in enumerate(whole.split([each * scale for each in axis.sizes(size)], dim)):
        received = local
        if index:
            received = torch.empty_like(share, memory_format=torch.contiguous_format)
            if share.shape[dim]:
                with axis.timeline.communication("receive"):
                    dist.recv(received, axis.global_rank(index), group=axis.group)
        share.copy_(received)
    return whole


def exchange_messages(
    name: str, axis: Axis, sent: Sequence[Message], received: Sequence[Message]
) -> Callable[[], None]:
    """Starts to send and receive contiguous tensors at the same time. Skips empty ones. Returns a function that waits
    for all of them. name: of the exchange, for the timeline."""
    messages = [
        dist.P2POp(run, tensor, axis.global_rank(index), axis.group)
        for run, each in ((dist.isend, sent), (dist.irecv, received))
        for tensor, index in each
        if tensor.numel()
    ]
    if not messages:
        return lambda: None
    with axis.timeline.communication(f"{name}, send"):
        works = dist.batch_isend_irecv(messages)

    def wait(_sent: Sequence[Message] = sent) -> None:  # kept until they are delivered
        with axis.timeline.communication(f"{name}, receive"):
            for work in works:
                work.wait()

    return wait


def gather_numbers(values: Sequence[Number], group: dist.ProcessGroup | None) -> list[tuple[Number, ...]]:
    """Returns the numbers of every rank of the group, whose tensors are on the CPU."""
    own = torch.tensor(values)
    if dist.get_world_size(group) == 1:
        return [tuple(own.tolist())]
    found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, own, group=group)
    return [tuple(each.tolist()) for each in found]


def gather_json(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Returns a value that JSON can hold of every rank of the group, whose tensors are on the CPU."""
    own = json.dumps(value).encode()
    most = max(size for (size,) in gather_numbers((len(own),), group))
    sent = torch.frombuffer(bytearray(own.ljust(most)), dtype=torch.uint8)
    found = [torch.empty_like(sent) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, sent, group=group)
    return [json.loads(each.numpy().tobytes()) for each in found]
