"""Ulysses: an all-to-all turns some tokens with all heads into all tokens with some heads.

https://arxiv.org/abs/2309.14509. Shares may have any size, also zero. Shapes: B batch, H heads, h those of this rank,
L local tokens, R the Ulysses group's tokens, E a token's head as it is sent (see formats.py), n heads, r ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist

from ...groups.mesh import Axis

Shares = Sequence[range]  # of heads, by rank of the axis


class UlyssesExchange:
    """The all-to-alls over the Ulysses axis, there and back. Each method starts one, and returns a function that waits
    for it."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis

    def scatter_heads(
        self, lengths: list[int], tensors_BHLE: Sequence[torch.Tensor], shares: Sequence[Shares]
    ) -> Callable[[], list[torch.Tensor]]:
        """Sends local tokens with all heads. Receives the group's tokens with this rank's heads, BhRE.

        lengths: tokens by rank of the group. shares: of each tensor. The token dim comes first in memory, so received
        tokens are already in rank order, and nothing is unpacked.
        """
        batch, _, local_tokens, width = tensors_BHLE[0].shape
        heads = [sum(map(len, of_rank)) for of_rank in zip(*shares, strict=True)]
        own = [len(share[self.axis.index]) for share in shares]
        of_head = batch * width
        send = tensors_BHLE[0].new_empty(local_tokens * of_head * sum(heads))
        start = 0
        for run in list_runs(*shares):
            shape = (len(run), local_tokens, batch, heads[run.start], width)
            stop = start + math.prod(shape)
            parts = send[start:stop].view(shape).split([len(share[run.start]) for share in shares], 3)
            for part, tensor, share in zip(parts, tensors_BHLE, shares, strict=True):
                part.copy_(view_heads(tensor, share, run))
            start = stop
        to = [local_tokens * of_head * count for count in heads]
        arrive = self.exchange(send, to, [length * of_head * sum(own) for length in lengths])

        def arrived() -> list[torch.Tensor]:
            received = arrive().view(sum(lengths), batch, sum(own), width)
            return [part.permute(1, 2, 0, 3) for part in received.split(own, 2)]

        return arrived

    def gather_heads(
        self, lengths: list[int], out_BhRE: torch.Tensor, shares: Shares
    ) -> Callable[[], Iterator[tuple[range, torch.Tensor]]]:
        """The inverse of `scatter_heads` for one tensor. Yields runs of ranks, and the local tokens with the heads of
        each run, rLBnE. `view_heads` returns the view to which they are copied."""
        batch, own, _, width = out_BhRE.shape
        local_tokens = lengths[self.axis.index]
        send = out_BhRE.permute(2, 0, 1, 3).reshape(-1)
        to = [length * batch * own * width for length in lengths]
        arrive = self.exchange(send, to, [local_tokens * batch * len(share) * width for share in shares])

        def arrived() -> Iterator[tuple[range, torch.Tensor]]:
            received, start = arrive(), 0
            for run in list_runs(shares):
                shape = (len(run), local_tokens, batch, len(shares[run.start]), width)
                stop = start + math.prod(shape)
                yield run, received[start:stop].view(shape)
                start = stop

        return arrived

    def exchange(self, send: torch.Tensor, to: list[int], of: list[int]) -> Callable[[], torch.Tensor]:
        """Starts an all-to-all of flat tensors. to, of: how many elements are sent to each rank of the axis, and
        received from it."""
        received = send.new_empty(sum(of))
        work = dist.all_to_all_single(received, send, of, to, group=self.axis.group, async_op=True)

        def arrive(_sent: torch.Tensor = send) -> torch.Tensor:  # kept until it is delivered
            with self.axis.timeline.communication("all_to_all"):
                if work is not None:  # None only on a rank outside of the group
                    work.wait()
            return received

        return arrive


def list_runs(*shares: Shares) -> Iterator[range]:
    """Groups the ranks that have heads into runs. The ranks of a run have equally many heads, at equal distances. So
    one copy suffices for the whole run."""

    def steps(rank: int) -> list[tuple[int, int, int]]:
        return [(len(share[rank]), len(share[rank - 1]), share[rank].start - share[rank - 1].start) for share in shares]

    ranks, start = len(shares[0]), 0
    for rank in range(1, ranks + 1):
        if rank < ranks:
            here = steps(rank)
            regular = all(count == before and step > 0 for count, before, step in here)
            if regular and (rank == start + 1 or here == steps(rank - 1)):
                continue
        if any(share[start] for share in shares):
            yield range(start, rank)
        start = rank


def view_heads(tensor_BHLE: torch.Tensor, shares: Shares, run: range) -> torch.Tensor:
    """Returns a view of a run's heads, rLBnE."""
    first, last = shares[run.start], shares[run.stop - 1]
    step = shares[run.start + 1].start - first.start if len(run) > 1 else 1
    within = tensor_BHLE[:, first.start : last.stop]
    return within.unfold(1, len(first), step).permute(1, 2, 0, 4, 3)
