"""CogView4 (https://github.com/THUDM/CogView4)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from . import cogvideox
from .adapter import Adapter, register_adapter, usual_spec

if TYPE_CHECKING:
    from diffusers import ModelMixin

    from ..hooks import Hooks


def prepare(model: ModelMixin, hooks: Hooks) -> None:
    """Moves the rotary embedding to the device once per forward. The model makes it on the CPU. Otherwise each block
    would move it and make the host wait."""

    def bring(_module: torch.nn.Module, args: tuple, rotary: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (latents,) = args
        return tuple(part.to(latents.device) for part in rotary)

    hooks.after(model.get_submodule("rope"), bring)


register_adapter(
    Adapter(
        usual_spec("CogView4Transformer2DModel", replace(cogvideox.BLOCKS, refused=("attention_mask",))),
        conditions=("encoder_hidden_states", "original_size", "target_size", "crop_coords"),
        widths={"encoder_hidden_states": "text_embed_dim"},
        prepare=prepare,
    )
)
