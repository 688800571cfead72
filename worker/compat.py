"""Every private name of torch that the worker uses, and why. Used only through these functions."""

from __future__ import annotations

from typing import Any

import torch


def parts_of(module: torch.nn.Module) -> dict[str, Any]:
    """Returns a module's own parts, the dict itself: a node may put anything into it. Since torch 1.0."""
    return module._modules


def version_of(tensor: torch.Tensor) -> int:
    """Returns how often a tensor was written to. An inference tensor does not know it. Since torch 1.9."""
    return 0 if tensor.is_inference() else tensor._version
