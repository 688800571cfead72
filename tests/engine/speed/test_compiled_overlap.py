"""In a compiled block, attention is given products that it does not need, and computes them while ranks exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from parallel_backend.hooks import Hooks
from parallel_backend.seams.attention import install_attention
from parallel_backend.seams.compiled import CompiledBlocks
from parallel_backend.seams.compiled_overlap import move_products
from parallel_backend.seams.forward import ForwardSlot

WIDTH, MLP, HEADS, TOKENS = 16, 24, 4, 6
TOLERANCE = 1e-6


class Attend(torch.nn.Module):
    def forward(self, *qkv: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*qkv).transpose(1, 2).flatten(2)


class Block(torch.nn.Module):
    """make: takes the block and its input, returns queries, keys and values, and what computes the MLP's input from
    attention's output."""

    def __init__(self, make: Callable[[Any, torch.Tensor], tuple[torch.Tensor, Callable[[torch.Tensor], Any]]]) -> None:
        super().__init__()
        self.make = make
        self.attend = Attend()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.both = torch.nn.Linear(WIDTH, 3 * WIDTH + MLP)
        self.up, self.text = (torch.nn.Linear(WIDTH, MLP) for _ in range(2))
        self.middle = torch.nn.Linear(MLP, MLP)
        self.down = torch.nn.Linear(WIDTH + MLP, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv, mlp = self.make(self, x)
        q, k, v = qkv.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        out = self.attend(q, k, v)
        return self.down(torch.cat((out, mlp(out)), -1))


def fused(block: Any, x: torch.Tensor) -> Any:
    qkv, mlp = torch.split(block.both(x), [3 * WIDTH, MLP], dim=-1)
    return qkv, lambda _: F.gelu(mlp)


def read_before(block: Any, x: torch.Tensor) -> Any:
    mlp = F.gelu(block.up(x))
    return block.qkv(x), lambda _: mlp


def of_a_changed_input(block: Any, x: torch.Tensor) -> Any:
    x = x + 1
    mlp = block.up(x)
    x.mul_(2)
    return block.qkv(x), lambda _: mlp


def of_a_filled_input(block: Any, x: torch.Tensor) -> Any:
    x = x + 1
    mlp = block.up(x)
    x[:, :2] = 0
    return block.qkv(x), lambda _: mlp


def of_what_fills_an_input(block: Any, x: torch.Tensor) -> Any:
    mlp = block.up(x)
    buffer = torch.zeros_like(x)
    buffer[..., :] = mlp[..., :WIDTH]
    return block.qkv(buffer), lambda _: mlp


def needed_whole(block: Any, x: torch.Tensor) -> Any:
    qkv, mlp = torch.split(block.both(x), [3 * WIDTH, MLP], dim=-1)
    return qkv + mlp.mean(), lambda _: mlp


# What computes the MLP's input, and how many products of it attention finds to compute.
CASES = {
    "fused": (fused, 1),
    "read before": (read_before, 1),
    "read after": (lambda block, x: (block.qkv(x), lambda _: F.gelu(block.up(x))), 1),
    "one of another": (lambda block, x: (block.qkv(x), lambda _: block.middle(F.gelu(block.up(x)))), 1),
    "two": (lambda block, x: (block.qkv(x), lambda _: block.up(x) + block.text(x)), 2),
    "of what attends": (lambda block, x: (block.qkv(x), block.up), 0),
    "of a changed input": (of_a_changed_input, 0),
    "of a filled input": (of_a_filled_input, 0),
    "of what fills an input": (of_what_fills_an_input, 0),
    "needed whole": (needed_whole, 0),
    "of no tokens": (lambda block, x: (block.qkv(x), lambda _: block.up(x.mean(1))[:, None].expand(-1, TOKENS, -1)), 0),
}


@pytest.mark.parametrize(("make", "moved"), CASES.values(), ids=CASES)
def test_attention_computes_what_it_does_not_need(make: Any, moved: int) -> None:
    """The results are those of the block as it is."""
    found, slot = [], ForwardSlot()

    def attend(*given: Any, **_: Any) -> torch.Tensor:
        found.append(len(slot.forward.deferred))
        if len(found) == 2:  # if it runs none, the operator does
            slot.forward.run_deferred()
        return F.scaled_dot_product_attention(*given[:3])

    def passed(module: torch.fx.GraphModule, _inputs: Any, **_: Any) -> torch.fx.GraphModule:
        move_products(module.graph)
        module.graph.lint()
        module.recompile()
        return module

    torch.manual_seed(0)
    block, x = Block(make), torch.randn(2, TOKENS, WIDTH)
    torch.compiler.reset()
    with torch.no_grad():
        alone = block(x)
        install_attention(block, "attend", [attend], Hooks(), slot)
        with CompiledBlocks([block], torch.device("cpu")).running({"backend": passed}):
            for _ in range(2):
                torch.testing.assert_close(block(x), alone, rtol=TOLERANCE, atol=TOLERANCE)
                assert not slot.forward.deferred
    assert found == [moved] * 2
