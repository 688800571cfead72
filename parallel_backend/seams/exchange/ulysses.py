"""Ulysses: an all-to-all turns some tokens with all heads into all tokens with some heads.

https://arxiv.org/abs/2309.14509. Shares may have any size, also zero. Shapes: B batch, H heads, h those of this rank,
L local tokens, R the Ulysses group's tokens, E a token's head as it is sent (see differences.py), n heads, r ranks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from ...groups.mesh import Axis

Shares = tuple[range, ...]  # of heads, by rank of the axis
MESSAGES = 256  # whose plans are kept: each part of each kind of block, with each length of the text


class Run(NamedTuple):
    """The part of a message that goes to a run of ranks, or comes from it. start, stop, shape: in the message.

    heads: by tensor, all from the first rank's to the last one's. counts: by tensor, of a rank's heads. steps: by
    tensor, from a rank's heads to the next rank's.
    """

    ranks: range
    start: int
    stop: int
    shape: tuple[int, int, int, int, int]
    heads: list[range]
    counts: list[int]
    steps: list[int]


class AllToAll(NamedTuple):
    """An all-to-all from local tokens to the group's, or back.

    to, of: the elements for each rank, and those from it; on the way back they change places. own: this rank's heads,
    by tensor."""

    runs: list[Run]
    to: list[int]
    of: list[int]
    own: list[int]


@functools.lru_cache(maxsize=MESSAGES)
def plan_exchange(index: int, batch: int, width: int, lengths: tuple[int, ...], shares: tuple[Shares, ...]) -> AllToAll:
    """Plans `scatter_heads` for the rank at `index`, and `gather_heads`. Blocks are alike, so it is done once for all
    of them."""
    runs, start = [], 0
    for ranks in list_runs(*shares):
        counts = [len(share[ranks.start]) for share in shares]
        shape = (len(ranks), lengths[index], batch, sum(counts), width)
        stop = start + math.prod(shape)
        heads = [range(share[ranks.start].start, share[ranks.stop - 1].stop) for share in shares]
        steps = [share[ranks.start + 1].start - share[ranks.start].start if len(ranks) > 1 else 1 for share in shares]
        runs.append(Run(ranks, start, stop, shape, heads, counts, steps))
        start = stop
    own = [len(share[index]) for share in shares]
    to = [lengths[index] * batch * width * sum(map(len, of_rank)) for of_rank in zip(*shares, strict=True)]
    of = [length * batch * width * sum(own) for length in lengths]
    return AllToAll(runs, to, of, own)


def scatter_heads(
    axis: Axis,
    lengths: tuple[int, ...],
    tensors_BHLE: Sequence[torch.Tensor],
    shares: tuple[Shares, ...],
) -> Callable[[], Sequence[torch.Tensor]]:
    """Starts an all-to-all over the Ulysses axis, from local tokens with all heads to the group's tokens with this
    rank's heads. Returns a function that waits for them and returns them by tensor, BhRE.

    lengths: tokens by rank of the group. shares: of each tensor. The token dim comes first in memory, so received
    tokens are already in rank order, and nothing is unpacked.
    """
    batch, _, _, width = tensors_BHLE[0].shape
    message = plan_exchange(axis.index, batch, width, lengths, shares)
    send = tensors_BHLE[0].new_empty(sum(message.to))
    for run in message.runs:
        heads = [view_heads(tensor, run, index) for index, tensor in enumerate(tensors_BHLE)]
        torch.cat(heads, 3, out=send[run.start : run.stop].view(run.shape))
    shape = (sum(lengths), batch, sum(message.own), width)
    received = send.new_empty(sum(message.of))
    wait = exchange(axis, send, received, message.to, message.of)

    def arrived() -> Sequence[torch.Tensor]:
        wait()
        return received.view(shape).permute(1, 2, 0, 3).split_with_sizes(message.own, 1)

    return arrived


def gather_heads(
    axis: Axis, lengths: tuple[int, ...], out_BhRE: torch.Tensor, shares: Shares
) -> Callable[[], list[tuple[Run, torch.Tensor]]]:
    """Starts the inverse of `scatter_heads` for one tensor. Returns a function that waits for the result and returns it
    by run of ranks: the local tokens with the heads of the run, rLBnE. `view_heads` returns the view to copy it to."""
    batch, _, _, width = out_BhRE.shape
    message = plan_exchange(axis.index, batch, width, lengths, (shares,))
    received = out_BhRE.new_empty(sum(message.to))
    wait = exchange(axis, out_BhRE.permute(2, 0, 1, 3).reshape(-1), received, message.of, message.to)

    def arrived() -> list[tuple[Run, torch.Tensor]]:
        wait()
        return [(run, received[run.start : run.stop].view(run.shape)) for run in message.runs]

    return arrived


def exchange(
    axis: Axis, send: torch.Tensor, received: torch.Tensor, to: list[int], of: list[int]
) -> Callable[[], None]:
    """Starts an all-to-all of flat tensors. Returns a function that waits for its end. to, of: how many elements are
    sent to each rank of the axis, and received from it."""
    work = dist.all_to_all_single(received, send, of, to, group=axis.group, async_op=True)

    def wait(_sent: torch.Tensor = send) -> None:  # kept until it is delivered
        with axis.timeline.communication("all_to_all"):
            if work is not None:  # None only on a rank outside of the group
                work.wait()

    return wait


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


def view_heads(tensor_BHLE: torch.Tensor, run: Run, index: int = 0) -> torch.Tensor:
    """Returns a view of a run's heads in the tensor with this index in the message, rLBnE."""
    heads = run.heads[index]
    ours = tensor_BHLE[:, heads.start : heads.stop]
    return ours.unfold(1, run.counts[index], run.steps[index]).permute(1, 2, 0, 4, 3)
