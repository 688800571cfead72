"""Ulysses: one all-to-all turns a share of the tokens with all heads into all tokens with a share of the heads.

https://arxiv.org/abs/2309.14509. Shapes: B batch, H heads, h = H / ulysses local heads, L local tokens, R the Ulysses
group's tokens, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from ...groups.mesh import Axis


class UlyssesExchange:
    """The all-to-alls over the Ulysses axis, there and back. Each returns once it is under way; what it returns waits
    for it."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis

    def scatter_heads(self, lengths: list[int], *tensors_BHLD: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
        """Local tokens with all heads to the Ulysses group's tokens with a share of the heads, BhRD.

        lengths: tokens by rank of the group. The buffer runs token-first, so that what arrives already lies in rank
        order and nothing is unpacked.
        """
        degree = self.axis.degree
        batch, heads, local_tokens, head_dim = tensors_BHLD[0].shape
        send = tensors_BHLD[0].new_empty(degree, local_tokens, len(tensors_BHLD), batch, heads // degree, head_dim)
        for index, tensor in enumerate(tensors_BHLD):
            send[:, :, index] = tensor.unflatten(1, (degree, -1)).permute(1, 3, 0, 2, 4)
        arrive = self.exchange(send.flatten(0, 1), [local_tokens] * degree, lengths)
        return lambda: tuple(arrive().permute(1, 2, 3, 0, 4))

    def gather_heads(self, lengths: list[int], out_BhRD: torch.Tensor) -> Callable[[], torch.Tensor]:
        """The inverse of `scatter_heads` for one tensor."""
        degree = self.axis.degree
        local_tokens = lengths[self.axis.index]
        arrive = self.exchange(out_BhRD.permute(2, 0, 1, 3).contiguous(), lengths, [local_tokens] * degree)

        def local() -> torch.Tensor:
            out_BLUhD = arrive().unflatten(0, (degree, local_tokens)).permute(2, 1, 0, 3, 4)
            return out_BLUhD.flatten(2, 3).transpose(1, 2)

        return local

    def exchange(self, send: torch.Tensor, to: list[int], of: list[int]) -> Callable[[], torch.Tensor]:
        """An all-to-all of rows, under way; so many `to` each rank of the axis, and so many `of` each."""
        received = send.new_empty(sum(of), *send.shape[1:])
        work = dist.all_to_all_single(received, send, of, to, group=self.axis.group, async_op=True)

        def arrive(_sent: torch.Tensor = send) -> torch.Tensor:  # held until it is delivered
            with self.axis.timeline.communication("all_to_all"):
                if work is not None:  # none only where a rank is outside of the group
                    work.wait()
            return received

        return arrive
