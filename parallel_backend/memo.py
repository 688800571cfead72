"""Work that depends on the conditions alone, done once a request in place of once a forward.

Every rank of a sequence group, every patch and every step would do it again: it is what a plan cannot share out.
"""

from __future__ import annotations

import torch

from .hooks import Hooks

MAX_KEPT = 2  # cond and uncond, where they run apart


class Memo:
    """Stands before a module's forward: an earlier result is given again for the same input, known by its memory.

    Inputs are kept, so that their memory cannot become another tensor's; nothing may write to it.
    """

    def __init__(self, module: torch.nn.Module, hooks: Hooks) -> None:
        self.module = module
        self.compute = module.forward
        self.kept: dict[tuple, tuple[torch.Tensor, torch.Tensor]] = {}
        module.forward = self
        hooks.on_removal(self.take_off)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) is not torch.Tensor:  # a subclass's memory may say nothing of what it is
            return self.compute(tensor)
        key = identity(tensor)
        if key not in self.kept:
            if len(self.kept) == MAX_KEPT:
                del self.kept[next(iter(self.kept))]
            self.kept[key] = (tensor, self.compute(tensor))
        return self.kept[key][1]

    def forget(self) -> None:
        self.kept.clear()

    def take_off(self) -> None:
        """Gives the module back the forward behind this one, which may have come after it."""
        self.forget()
        del self.module.forward
        if self.module.forward != self.compute:
            self.module.forward = self.compute


def identity(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def memoise(model: torch.nn.Module, names: tuple[str, ...], hooks: Hooks) -> list[Memo]:
    """Memos of the modules with these names, in the model itself or in its blocks."""
    suffixes = tuple(f".{name}" for name in names)
    if not names:
        return []
    return [Memo(module, hooks) for path, module in model.named_modules() if f".{path}".endswith(suffixes)]


def pause_memos(model: torch.nn.Module, hooks: Hooks) -> None:
    """Has a model do without, until `hooks` are removed: a graph would be for the memory of one input."""
    for module in model.modules():
        memo = vars(module).get("forward")
        if isinstance(memo, Memo):
            hooks.replace(module, "forward", memo.compute)
