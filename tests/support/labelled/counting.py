"""What is counted of a model's forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .watch import Watch


def counted(watch: Watch, blocks: Iterable[torch.nn.Module], once: Callable[[], Any]) -> Any:
    """What comes of a second run. What is counted is of this one, and what is inside of a block is told apart."""
    once()
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: watch.enter(), prepend=True)
        block.register_forward_hook(lambda *_: watch.leave(), always_call=True)  # a stage leaves by an exception
    watch.begin()
    result = once()
    watch.end()
    return result
