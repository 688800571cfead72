"""PixArt-alpha (https://arxiv.org/abs/2310.00426) and PixArt-Sigma (https://arxiv.org/abs/2403.04692)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..hooks import Hooks
from .spec import Config, ModelSpec, Tensors, register

if TYPE_CHECKING:
    from diffusers import ModelMixin


def inputs(config: Config, latents_BCHW: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """T5 embeddings (B, tokens, width); resolution (B, 2) in pixels and aspect ratio (B, 1), which Sigma ignores.

    position_scale (B, 2): for how many patches a side positions are, and what they are divided by, if not the config's.
    """
    return {
        "hidden_states": latents_BCHW,
        "timestep": timestep_B,
        "encoder_hidden_states": conditions["encoder_hidden_states"],
        "added_cond_kwargs": {name: value for name, value in conditions.items() if name != "encoder_hidden_states"},
    }


def scale_positions(model: ModelMixin, hooks: Hooks) -> None:
    """Gives the model's positions the scale that comes with a request."""

    positions = model.pos_embed
    trained = positions.base_size, positions.interpolation_scale, positions.height

    def place(base: int, scale: float, height: int | None) -> None:
        positions.base_size, positions.interpolation_scale, positions.height = base, scale, height

    def change(_model: torch.nn.Module, _args: tuple, keywords: dict[str, Any]) -> None:
        scale_B2 = keywords["added_cond_kwargs"].pop("position_scale", None)
        if scale_B2 is None:
            place(*trained)
        else:
            base, scale = scale_B2[0].tolist()
            place(base, scale, None)  # without a height, it computes them anew

    hooks.before(model, change, with_kwargs=True)
    hooks.on_removal(lambda: place(*trained))


register(
    ModelSpec(
        model_class="PixArtTransformer2DModel",
        blocks=("transformer_blocks",),
        streams=("hidden_states",),
        self_attention={"attn1": ("hidden_states",)},
        conditions=("encoder_hidden_states", "resolution", "aspect_ratio", "position_scale"),
        optional=("position_scale",),
        prepare=scale_positions,
        inputs=inputs,
        head="proj_out",
        memoised=("caption_projection", "attn2.to_k", "attn2.to_v"),
        widths={"encoder_hidden_states": "caption_channels"},
        output=lambda config, sample, latents: sample[:, : config["in_channels"]],
    )
)
