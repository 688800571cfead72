"""One tiny, seeded model a family, with inputs and the plain diffusers call that the engine is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import diffusers
import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Family:
    """model_class and config of a tiny diffusers model.

    conditions: (batch, height, width) to the engine's conditions.
    reference: (model, latents, timestep, conditions) to what one process on plain diffusers predicts.
    """

    model_class: str
    config: dict
    conditions: Callable[[int, int, int], Tensors]
    reference: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, Tensors], torch.Tensor]

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

    def inputs(self, batch: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        torch.manual_seed(1)
        latents = torch.randn(batch, self.config["in_channels"], height, width)
        return latents, torch.linspace(10, 900, batch), self.conditions(batch, height, width)


def dit_reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, conditions: Tensors):
    """Plain diffusers. For latents that are not square, whose image diffusers cannot put together, the head's tokens
    are read where they leave the model and put together here, patch by patch."""
    tokens = []
    hook = model.proj_out_2.register_forward_hook(lambda _m, _a, out: tokens.append(out))
    try:
        sample = model(latents, timestep=timestep, **conditions).sample
    except RuntimeError:
        assert latents.shape[-2] != latents.shape[-1]
    hook.remove()
    channels, patch = model.config.in_channels, model.config.patch_size
    height, width = latents.shape[-2:]
    if height == width:
        return sample[:, :channels]
    image = latents.new_zeros(len(latents), model.out_channels, height, width)
    for index, patch_BK in enumerate(tokens[0].unbind(1)):
        row, column = divmod(index, width // patch)
        pixels = patch_BK.reshape(-1, patch, patch, model.out_channels).permute(0, 3, 1, 2)
        image[:, :, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] = pixels
    return image[:, :channels]


def pixart_reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, conditions: Tensors):
    sizes = {name: conditions[name] for name in ("resolution", "aspect_ratio")}
    text = conditions["encoder_hidden_states"]
    sample = model(latents, encoder_hidden_states=text, timestep=timestep, added_cond_kwargs=sizes).sample
    return sample[:, : model.config.in_channels]


def pixart_conditions(batch: int, height: int, width: int) -> Tensors:
    return {
        "encoder_hidden_states": torch.randn(batch, 7, 32),
        "resolution": torch.tensor([[height * 8.0, width * 8.0]]).repeat(batch, 1),
        "aspect_ratio": torch.tensor([[height / width]]).repeat(batch, 1),
    }


def pixart(use_additional_conditions: bool) -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 24,
        "num_layers": 3,
        "cross_attention_dim": 96,
        "sample_size": 16,
        "caption_channels": 32,
        "in_channels": 4,
        "use_additional_conditions": use_additional_conditions,
    }
    return Family("PixArtTransformer2DModel", config, pixart_conditions, pixart_reference)


FAMILIES = {
    "dit": Family(
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 3,
            "sample_size": 16,
            "num_embeds_ada_norm": 10,
        },
        lambda batch, _height, _width: {"class_labels": torch.arange(batch) * 5 % 11},
        dit_reference,
    ),
    "pixart-alpha": pixart(use_additional_conditions=True),
    "pixart-sigma": pixart(use_additional_conditions=False),
}
