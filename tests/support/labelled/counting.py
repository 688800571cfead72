"""What is counted of a model's forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .tensors import Watch


def counted(blocks: Iterable[torch.nn.Module], watch: Watch, run: Callable[[], Any]) -> Any:
    """What comes of a second run. What is counted is of this one, and what is inside of a block is told apart."""
    run()
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: watch.enter(), prepend=True)
        block.register_forward_hook(lambda *_: watch.leave(), always_call=True)  # a stage leaves by an exception
    watch.begin()
    result = run()
    watch.end()
    return result
