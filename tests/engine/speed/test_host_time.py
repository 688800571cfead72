"""What a rank's host does for a block, beside the model's own code: a device that computes fast must not wait for it.

`tests/support/host_time.py` prints the milliseconds. A test counts the Python functions, which no other work changes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import _len_torch_function_stack

from parallel_backend.hooks import Hooks
from parallel_backend.seams.attention import install_attention
from parallel_backend.seams.forward import ForwardSlot, NodeCode
from tests.support.host_time import BY_NODES, PLANS
from tests.support.programs import run_program

BLOCKS = 2  # of each kind
MOST_CALLS = {"ulysses=2": 440, "ring=2": 305, BY_NODES: 610}  # a block, with its exchanges in four parts
MOST_OPERATIONS = {"ulysses=2": 26, "ring=2": 15}  # that a block has more
ALONE = 300  # a forward, whatever its blocks
EARLY = F.scaled_dot_product_attention  # as code has it that imports the function


def test_a_block_calls_few_python_functions(comfyui: Path) -> None:
    found = run_program(comfyui, "tests.support.host_time", BLOCKS, BLOCKS)
    assert set(found) == {"the model's own", BY_NODES, *PLANS}
    assert 0 < found["one rank"]["calls"] < ALONE, "one rank's blocks have no hooks"
    assert found["one rank"]["operations"] == 0 < found["the model's own"]["operations"]
    for name, most in MOST_CALLS.items():
        assert 100 < (found[name]["calls"] - found["one rank"]["calls"]) / (2 * BLOCKS) <= most, name
    for name, most in MOST_OPERATIONS.items():
        assert 0 < (found[name]["operations"] - found["one rank"]["operations"]) / (2 * BLOCKS) <= most, name


class Attends(torch.nn.Module):
    """Attends by a name in `torch.nn.functional`, or as code does that has imported the function. watched: of each
    forward, whether a mode saw torch's functions."""

    def __init__(self, is_early: bool) -> None:
        super().__init__()
        self.is_early = is_early
        self.watched: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.watched.append(_len_torch_function_stack() > 0)
        return (EARLY if self.is_early else F.scaled_dot_product_attention)(x, x, x)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """In place of a module's attention; calls it as kernels do."""
    return F.scaled_dot_product_attention(query, key, value) + 1


@pytest.mark.parametrize("is_early", (False, True))
def test_attention_is_redirected_by_whatever_name_it_is_called(is_early: bool) -> None:
    module, slot, hooks, x = Attends(is_early), ForwardSlot(), Hooks(), torch.randn(1, 2, 3, 4)
    install_attention(module, "", [attend], hooks, slot)
    for is_plain in (False, True, True, False, True):
        slot.code = NodeCode.NONE if is_plain else NodeCode.UNKNOWN
        assert torch.equal(module(x), EARLY(x, x, x) + 1)
        assert F.scaled_dot_product_attention is EARLY
    hooks.close()
    assert torch.equal(module(x), EARLY(x, x, x))
    assert module.watched == ([True] * 5 if is_early else [True, True, False, True, True]) + [False]


def test_a_module_that_does_not_attend_is_told_of_without_a_mode_too() -> None:
    module, slot, hooks, x = Attends(False), ForwardSlot(), Hooks(), torch.randn(1, 2, 3, 4)
    install_attention(module, "", [attend], hooks, slot)
    slot.code = NodeCode.NONE
    for _ in range(2):
        module(x)
    module.is_early = True  # as no code of the model's own does
    with pytest.raises(RuntimeError, match="does not attend"):
        module(x)
    assert F.scaled_dot_product_attention is EARLY
