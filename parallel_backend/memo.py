"""Computes what depends only on the conditions once per request instead of once per forward.

A plan cannot split this work: every rank of a sequence group, every patch and every step would repeat it.
"""

from __future__ import annotations

import torch

from .hooks import Hooks

MAX_KEPT = 2  # cond and uncond, if they run separately


class Memo:
    """Replaces a module's forward and returns the earlier result for the same input memory.

    It keeps the inputs, so that no other tensor can get their memory. Nothing may write to that memory.
    """

    def __init__(self, module: torch.nn.Module, hooks: Hooks) -> None:
        self.module = module
        self.compute = module.forward
        self.kept: dict[tuple, tuple[torch.Tensor, torch.Tensor]] = {}
        module.forward = self
        hooks.on_removal(self.restore_forward)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) is not torch.Tensor:  # a subclass's memory may not identify its value
            return self.compute(tensor)
        key = identity(tensor)
        if key not in self.kept:
            if len(self.kept) == MAX_KEPT:
                del self.kept[next(iter(self.kept))]
            self.kept[key] = (tensor, self.compute(tensor))
        return self.kept[key][1]

    def forget(self) -> None:
        self.kept.clear()

    def restore_forward(self) -> None:
        """Gives the module back its earlier forward: the class's, or one that was set on the module."""
        self.forget()
        del self.module.forward
        if self.module.forward != self.compute:
            self.module.forward = self.compute


def identity(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def memoise(model: torch.nn.Module, names: tuple[str, ...], hooks: Hooks) -> list[Memo]:
    """Adds a Memo to each module with one of these names, in the model itself or in its blocks."""
    suffixes = tuple(f".{name}" for name in names)
    if not names:
        return []
    return [Memo(module, hooks) for path, module in model.named_modules() if f".{path}".endswith(suffixes)]


def pause_memos(model: torch.nn.Module, hooks: Hooks) -> None:
    """Turns a model's memos off until `hooks` are removed, because a graph would fix the memory of one input."""
    for module in model.modules():
        memo = vars(module).get("forward")
        if isinstance(memo, Memo):
            hooks.replace(module, "forward", memo.compute)
