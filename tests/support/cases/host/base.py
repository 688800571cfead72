"""What a row of the equality table of ComfyUI's own classes is: a tiny model with random weights, and a call of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import torch

Call = tuple[tuple, dict[str, Any]]
BATCH = 2
TEXT = 13  # tokens, which divide by neither 2 nor 4
SIGMA = 0.7


@dataclass(frozen=True)
class HostCase:
    """model_class: as in a spec. config: what its constructor takes. call: what makes random numbers of a shape, to a
    call of the model. module: of the class, where its name in the spec does not say. shorten: makes a network small
    that has its published size whatever the config says. steps: how many such calls are made one after the other, of a
    model that keeps something from step to step.
    """

    model_class: str
    config: Mapping[str, Any]
    call: Callable[[Callable[..., torch.Tensor]], Call]
    module: str = ""
    shorten: Callable[[Any], None] = lambda _model: None
    steps: int = 1

    def build(self, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
        """The model, its weights random but for norms, which are near 1. Only where ComfyUI can be imported."""
        module, _, name = self.model_class.rpartition(".")
        made = of_comfyui(f"{self.module or module}.{name}", dtype, **self.config)
        self.shorten(made)
        return fill_weights(made)

    def inputs(self) -> Call:
        generator = torch.Generator().manual_seed(7)
        return self.call(lambda *shape: torch.randn(*shape, generator=generator))


def of_comfyui(
    path: str, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu", **config: Any
) -> torch.nn.Module:
    """A model of the class at that path, with weights as they come. Only where ComfyUI can be imported. Raises
    ImportError for a module that this ComfyUI lacks."""
    module, _, name = path.rpartition(".")
    operations = resolve_name("comfy.ops:disable_weight_init")
    return resolve_name(f"{module}:{name}")(**config, dtype=dtype, device=device, operations=operations)


def fill_weights(model: torch.nn.Module) -> torch.nn.Module:
    """The model, ready to run, with random weights that keep values near 1 from layer to layer."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if not weight.is_floating_point() or not weight.numel():
                continue
            spread = 0.7 / weight[0].numel() ** 0.5 if weight.ndim > 1 else 0.1
            middle = 1 if weight.ndim <= 1 and name.endswith(("weight", "scale")) else 0
            weight.normal_(middle, spread, generator=generator)
    return model.eval().requires_grad_(False)


def latents(*shape: int, sigma: float = SIGMA) -> Callable[..., Call]:
    """Latents of this shape in each row, their timestep, and nothing else."""
    return lambda random: ((random(BATCH, *shape), torch.full((BATCH,), sigma)), {})


def image(channels: int, height: int = 14, width: int = 22) -> Callable[..., Call]:
    return latents(channels, height, width)


def video(channels: int, height: int = 10, width: int = 14, sigma: float = 1000 * SIGMA) -> Callable[..., Call]:
    return latents(channels, 3, height, width, sigma=sigma)


def with_(
    base: Callable[..., Call], extra: Callable[[Callable[..., torch.Tensor]], dict[str, Any]]
) -> Callable[..., Call]:
    """The call with more keyword arguments."""

    def call(random: Callable[..., torch.Tensor]) -> Call:
        args, kwargs = base(random)
        return args, {**kwargs, **extra(random)}

    return call


def text(width: int, **more: Callable[[Callable[..., torch.Tensor]], Any]) -> Callable[..., dict[str, Any]]:
    """A text of TEXT tokens, and what else there is."""
    return lambda random: {"context": random(BATCH, TEXT, width), **{name: made(random) for name, made in more.items()}}


def rows(*shape: int) -> Callable[..., torch.Tensor]:
    """Random numbers for each row of the batch."""
    return lambda random: random(BATCH, *shape)


def always(value: Any) -> Callable[..., Any]:
    return lambda _random: value


guidance = always(torch.full((BATCH,), 3.5))


def text_mask(_random: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Of texts of which one is shorter."""
    return (torch.arange(TEXT) < torch.tensor([[TEXT], [9]])).long()
