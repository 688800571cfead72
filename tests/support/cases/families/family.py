"""A family: a tiny, seeded model of a diffusers class, with inputs, and the plain call to compare the engine with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import diffusers
import torch

from parallel_backend.weights.loading import ModelSource

Tensors = dict[str, torch.Tensor]
SQUARE, UNEVEN = "square", "odd batch, not square, tokens that do not divide"
IMAGES = {SQUARE: (2, 16, 16), UNEVEN: (3, 10, 14)}
VIDEOS = {SQUARE: (2, 2, 8, 8), UNEVEN: (3, 3, 6, 10)}
TEXT_TOKENS = 7
# What many configs have.
TINY = {
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 3,
    "num_attention_heads": 4,
    "attention_head_dim": 16,
}


def by_names(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors, **others: Any):
    return model(hidden_states=latents, timestep=timestep, **given, **others).sample


@dataclass(frozen=True)
class Family:
    """model_class and config of a tiny diffusers model.

    conditions: (batch, height, width), or (batch, frames, height, width) for video, to the engine's conditions.
    reference: (model, latents, timestep, conditions) to what one process on plain diffusers predicts; without one, the
    model takes the conditions by their names.
    shapes: by name, the arguments of `conditions` to test with.
    channels: of the latents, if the model's input has other ones.
    timesteps: the first and the last of the batch; exact in bf16, as some models cast them before they embed them.
    by_frame: there is one for each of a row's frames, of which the first is 0.
    side: of the square of latent pixels that becomes a token.
    """

    model_class: str
    config: dict
    conditions: Callable[..., Tensors]
    reference: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, Tensors], torch.Tensor] = by_names
    shapes: dict[str, tuple[int, ...]] = field(default_factory=lambda: IMAGES)
    channels: int | None = None
    timesteps: tuple[float, float] = (100, 900)
    by_frame: bool = False
    side: int = 2

    def of_config(self, **config: object) -> Family:
        """The family with other values in its model's config."""
        return replace(self, config={**self.config, **config})

    @property
    def patch(self) -> tuple[int, ...]:
        """Latent pixels a token, over the latents' last dims."""
        dims = len(self.shapes[SQUARE]) - 1
        return (*(1,) * (dims - 2), self.side, self.side)

    @property
    def timestep_scale(self) -> float:
        """Of what the model's pipeline calls it with to a scheduler's timesteps."""
        return 1.0 if self.timesteps[1] > 1 else 1e-3

    def build(self) -> torch.nn.Module:
        """The model with seeded weights, perturbed so that every block and every gate matters."""
        torch.manual_seed(0)
        model = getattr(diffusers, self.model_class)(**self.config)
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        return model.eval()

    def save(self, folder: Path) -> Path:
        self.build().save_pretrained(folder)
        return folder

    def source(self, folder: Path, dtype: str = "fp32") -> ModelSource:
        """Of the model's file there."""
        files = (str(folder / "diffusion_pytorch_model.safetensors"),)
        return ModelSource(self.model_class, self.config, files, dtype)

    def inputs(self, batch: int, *sizes: int) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        torch.manual_seed(1)
        latents = torch.randn(batch, self.channels or self.config["in_channels"], *sizes)
        timesteps = torch.linspace(*self.timesteps, batch)
        if self.by_frame:
            timesteps = timesteps[:, None] * (torch.arange(sizes[0]) > 0)
        return latents, timesteps, self.conditions(batch, *sizes)


def drawn(**parts: tuple[int, ...] | Callable[..., torch.Tensor]) -> Callable[..., Tensors]:
    """A family's conditions: random numbers of a row's shape, or what a function makes of batch and sizes."""

    def conditions(batch: int, *sizes: int) -> Tensors:
        return {
            name: part(batch, *sizes) if callable(part) else torch.randn(batch, *part) for name, part in parts.items()
        }

    return conditions


def guidance(wanted: bool) -> dict[str, Callable[..., torch.Tensor]]:
    return {"guidance": lambda batch, *_sizes: torch.tensor([1.0, 2.0, 4.0])[:batch]} if wanted else {}


def masked(wanted: bool, tokens: int = TEXT_TOKENS) -> dict[str, Callable[..., torch.Tensor]]:
    return {"encoder_attention_mask": lambda batch, *_sizes: text_mask(batch, tokens)} if wanted else {}


def text_mask(batch: int, tokens: int = TEXT_TOKENS) -> torch.Tensor:
    """Prompts of different lengths, of which the second fills all tokens."""
    lengths = torch.tensor([tokens // 2 + 1, tokens, 3])[:batch]
    return (torch.arange(tokens) < lengths[:, None]).long()
