"""Layers as peft makes them of a layer that it adds a low-rank adapter to. peft itself is no package of the tests."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

RANK, SCALE = 2, 0.05
Model = TypeVar("Model", bound=torch.nn.Module)


class Linear(torch.nn.Module):
    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.in_features, self.out_features = layer, layer.in_features, layer.out_features
        down, up = (
            torch.nn.Linear(*sizes, bias=False) for sizes in ((layer.in_features, RANK), (RANK, layer.out_features))
        )
        self.lora_A, self.lora_B = (torch.nn.ModuleDict({"default": each}) for each in (down, up))

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.base_layer(x, *args, **kwargs) + SCALE * self.lora_B["default"](self.lora_A["default"](x))


class Conv2d(Linear):
    def __init__(self, layer: torch.nn.Conv2d) -> None:
        torch.nn.Module.__init__(self)
        self.base_layer, self.in_features, self.out_features = layer, layer.in_channels, layer.out_channels
        form = {"kernel_size": layer.kernel_size, "stride": layer.stride, "padding": layer.padding}
        down = torch.nn.Conv2d(layer.in_channels, RANK, **form, bias=False)
        up = torch.nn.Conv2d(RANK, layer.out_channels, 1, bias=False)
        self.lora_A, self.lora_B = (torch.nn.ModuleDict({"default": each}) for each in (down, up))


ADAPTED = {torch.nn.Linear: Linear, torch.nn.Conv2d: Conv2d}
for kind in ADAPTED.values():
    kind.__module__ = "peft.tuners.lora.layer"


def add_adapters(model: Model) -> Model:
    """Gives each of a model's linear layers and convolutions an adapter, in place."""
    torch.manual_seed(7)
    for path, layer in list(model.named_modules()):
        if kind := ADAPTED.get(type(layer)):
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, kind(layer).eval())
    return model
