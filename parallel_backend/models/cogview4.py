"""CogView4 (https://github.com/THUDM/CogView4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .spec import ModelSpec, SideInput, register

if TYPE_CHECKING:
    from diffusers import ModelMixin

    from ..hooks import Hooks


def prepare(model: ModelMixin, hooks: Hooks) -> None:
    """The model makes its rotary embedding on the CPU, whatever it runs on, and every block takes it to its device, for
    which the host waits."""

    def bring(_module: torch.nn.Module, args: tuple, made: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (latents,) = args
        return tuple(part.to(latents.device) for part in made)

    hooks.after(model.get_submodule("rope"), bring)


register(
    ModelSpec(
        model_class="CogView4Transformer2DModel",
        blocks=("transformer_blocks",),
        streams=("hidden_states", "encoder_hidden_states"),
        self_attention={"attn1": ("encoder_hidden_states", "hidden_states")},
        side_inputs=(SideInput("image_rotary_emb", 0, ("hidden_states",)),),
        conditions=("encoder_hidden_states", "original_size", "target_size", "crop_coords"),
        head="proj_out",
        widths={"encoder_hidden_states": "text_embed_dim"},
        inputs=lambda config, latents, timestep, conditions: {
            "hidden_states": latents,
            "timestep": timestep,
            **conditions,
        },
        output=lambda config, sample, latents: sample,
        prepare=prepare,
    )
)
