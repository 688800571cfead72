"""A family: a tiny, seeded model of a diffusers class, with inputs, and the plain call to compare the engine with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import diffusers
import torch

Tensors = dict[str, torch.Tensor]
SQUARE, UNEVEN = "square", "odd batch, not square, tokens that do not divide"
IMAGES = {SQUARE: (2, 16, 16), UNEVEN: (3, 10, 14)}
VIDEOS = {SQUARE: (2, 2, 8, 8), UNEVEN: (3, 3, 6, 10)}
TEXT_TOKENS = 7


@dataclass(frozen=True)
class Family:
    """model_class and config of a tiny diffusers model.

    conditions: (batch, height, width), or (batch, frames, height, width) for video, to the engine's conditions.
    reference: (model, latents, timestep, conditions) to what one process on plain diffusers predicts.
    shapes: by name, the arguments of `conditions` to test with.
    channels: of the latents, if the model's input has other ones.
    timesteps: the first and the last of the batch; exact in bf16, as some models cast them before they embed them.
    by_frame: there is one for each of a row's frames, of which the first is 0.
    """

    model_class: str
    config: dict
    conditions: Callable[..., Tensors]
    reference: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, Tensors], torch.Tensor]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=lambda: IMAGES)
    channels: int | None = None
    timesteps: tuple[float, float] = (100, 900)
    by_frame: bool = False

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

    def inputs(self, batch: int, *sizes: int) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        torch.manual_seed(1)
        latents = torch.randn(batch, self.channels or self.config["in_channels"], *sizes)
        timesteps = torch.linspace(*self.timesteps, batch)
        if self.by_frame:
            timesteps = timesteps[:, None] * (torch.arange(sizes[0]) > 0)
        return latents, timesteps, self.conditions(batch, *sizes)


def text_mask(batch: int, tokens: int = TEXT_TOKENS) -> torch.Tensor:
    """Prompts of different lengths, of which the second fills all tokens."""
    lengths = torch.tensor([tokens // 2 + 1, tokens, 3])[:batch]
    return (torch.arange(tokens) < lengths[:, None]).long()
