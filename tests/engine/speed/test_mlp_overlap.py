"""The MLP beside attention is computed while what attention exchanges travels, and is read as it would be anyway.

That models come out the same is for the tests of families and of ComfyUI's classes, under every plan. That their MLPs
are computed beside the exchange is for `cuda/test_labelled_files.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from parallel_backend.hooks import Hooks
from parallel_backend.seams.deferred import Deferred, DeferredTail
from parallel_backend.seams.forward import ForwardSlot
from parallel_backend.seams.mlp_overlap import MlpOverlap

WIDTH, MLP = 6, 8
TOLERANCE = 1e-6


class Block(torch.nn.Module):
    """As ComfyUI's single block, or as diffusers'. sent: what runs where attention has sent."""

    def __init__(self, fused: bool, sent: Callable[[], None]) -> None:
        super().__init__()
        self.fused = fused
        self.sent = sent
        self.linear1 = torch.nn.Linear(WIDTH, 3 * WIDTH + MLP)
        self.act = torch.nn.GELU()
        self.proj = torch.nn.Linear(WIDTH, MLP)
        self.to_v = torch.nn.Linear(WIDTH, WIDTH)
        self.out = torch.nn.Linear(WIDTH + MLP, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused:
            qkv, mlp = torch.split(self.linear1(x), [3 * WIDTH, MLP], dim=-1)
            v = qkv[..., 2 * WIDTH :]
        else:
            mlp = self.act(self.proj(x))
            v = self.to_v(x)
        self.sent()
        return self.out(torch.cat((v, self.act(mlp) if self.fused else mlp), 2))


ROWS = {"linear1": "qkv+", "proj": "+", "act": "+", "not_there": "+"}


def test_a_subclass_that_reads_the_mlp_before_attention_gives_what_it_gives_anyway() -> None:
    class Early(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mlp = self.act(self.proj(x))
            v = self.to_v(x) + mlp.mean(-1, keepdim=True)
            self.sent()
            return self.out(torch.cat((v, mlp), 2))

    slot = ForwardSlot()
    block, x = Early(False, slot.forward.run_deferred), torch.randn(2, 5, WIDTH)
    alone = block(x)
    MlpOverlap(block, ROWS, WIDTH, slot).install(Hooks())
    torch.testing.assert_close(block(x), alone, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_block_that_fails_leaves_nothing_to_the_next() -> None:
    slot = ForwardSlot()
    block = Block(True, Mock(side_effect=InterruptedError))
    MlpOverlap(block, ROWS, WIDTH, slot).install(Hooks())
    with pytest.raises(InterruptedError):
        block(torch.randn(1, 2, WIDTH))
    assert not slot.forward.deferred
    assert "forward" not in vars(block.linear1)


@pytest.mark.parametrize(
    "read",
    [
        lambda made: made + 1,
        lambda made: 1 - made,
        lambda made: made[..., 2:5],
        lambda made: made.chunk(2, -1)[1],
        lambda made: torch.cat([made, made], 1),
        lambda made: F.silu(made),
        lambda made: torch.split(made, [4, 3], 2)[0],
        lambda made: made.split(2, 1)[0],
    ],
)  # fmt: skip
def test_what_is_put_off_is_read_like_a_tensor(read: Callable[[Any], torch.Tensor]) -> None:
    whole = torch.randn(1, 4, 7)
    own, others = whole.split([3, 4], -1)
    for made in (Deferred(lambda: whole), DeferredTail(own, Deferred(lambda: others), 7)):
        assert torch.equal(read(made), read(whole))


def test_weights_that_are_no_plain_rows_are_taken_whole() -> None:
    class Quantised(torch.Tensor):
        pass

    pending: list[int] = []
    slot = ForwardSlot()
    block = Block(True, lambda: pending.append(len(slot.forward.deferred)))
    alone = block(x := torch.randn(1, 3, WIDTH))
    block.linear1.weight = torch.nn.Parameter(block.linear1.weight.detach().as_subclass(Quantised))  # type: ignore
    MlpOverlap(block, ROWS, WIDTH, slot).install(Hooks())
    assert torch.equal(block(x).as_subclass(torch.Tensor), alone)
    assert pending == [0, 0]
