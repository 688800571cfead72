"""Work that depends on the conditions alone, done once a request in place of once a forward.

Every rank of a sequence group, every patch and every step would do it again: it is what a plan cannot share out.
"""

from __future__ import annotations

import torch


class Memo:
    """Stands before a module's forward: the last result is given again for the same input, told by its memory.

    The input is held, so that its memory cannot become another tensor's; nothing may write to it.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.compute = module.forward
        self.input: torch.Tensor | None = None
        self.result: torch.Tensor | None = None
        module.forward = self

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) is not torch.Tensor:  # a DTensor's memory says nothing of what it is
            return self.compute(tensor)
        if self.input is None or identity(self.input) != identity(tensor):
            self.input, self.result = tensor, self.compute(tensor)
        return self.result

    def forget(self) -> None:
        self.input = self.result = None


def identity(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def memoise(model: torch.nn.Module, names: tuple[str, ...]) -> list[Memo]:
    """Memos of the modules with these names, in the model itself or in its blocks."""
    suffixes = tuple(f".{name}" for name in names)
    return [Memo(module) for path, module in model.named_modules() if f".{path}".endswith(suffixes)] if names else []
