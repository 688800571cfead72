"""Weights that files hold in fp8 stay so in memory: a linear layer makes them anew for each use.

Only those of the blocks, which are nearly all of a model: what lies around them asks its weights for their dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from ..memo import Memo

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
FLOAT8_DEVICES = ("cpu", "cuda")  # whose torch casts from fp8


def linear_weights(model: torch.nn.Module, blocks: Iterable[str]) -> set[str]:
    """The names of the weights of all linear layers in these block lists."""
    inside = tuple(f"{name}." for name in blocks)
    layers = (path for path, module in model.named_modules() if isinstance(module, torch.nn.Linear))
    return {f"{path}.weight" for path in layers if path.startswith(inside)}


def install_float8(model: torch.nn.Module, scales: Mapping[str, float]) -> None:
    """Lets the layers with these weights, in fp8, compute in the dtype of their input. scales: the weights' factors."""
    for name, scale in scales.items():
        layer: Any = model.get_submodule(name.removesuffix(".weight"))
        linear = Float8Linear(layer, scale)
        if isinstance(layer.forward, Memo):
            layer.forward.compute = linear
        else:
            layer.forward = linear


class Float8Linear:
    """Stands in for the forward of a linear layer whose weight may be in fp8."""

    def __init__(self, layer: torch.nn.Linear, scale: float) -> None:
        self.layer = layer
        self.scale = scale

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.layer.weight
        if weight.dtype in FLOAT8:  # otherwise there are additions in it
            weight = weight.to(x.dtype) if self.scale == 1.0 else (weight.float() * self.scale).to(x.dtype)
        return F.linear(x, weight, self.layer.bias)
