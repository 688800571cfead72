"""Allegro (https://arxiv.org/abs/2410.15458), from text."""

from typing import Any

import torch

from .adapter import Adapter, Config, Tensors, register_adapter, usual_spec
from .rotary import rotary_of_axes
from .spec import single_stream


def inputs(config: Config, latents_BCFHW: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict:
    """T5 embeddings (B, tokens, width), and a mask (B, tokens) if not all count."""
    return {
        "hidden_states": latents_BCFHW,
        "timestep": timestep_B,
        "encoder_attention_mask": None,
        "image_rotary_emb": rotary_of_axes(config, latents_BCFHW),
        **conditions,
    }


class Processor:
    """The class's own, for any number of tokens. A block drops the dim of tokens if a rank has a single one."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: None = None,
        attention_mask: None = None,
        image_rotary_emb: tuple | None = None,
    ) -> torch.Tensor:
        tokens_BLD = hidden_states if hidden_states.ndim == 3 else hidden_states[:, None]
        return self.own(attn, tokens_BLD, encoder_hidden_states, attention_mask, image_rotary_emb=image_rotary_emb)


BLOCKS = single_stream(
    "transformer_blocks",
    "hidden_states",
    "attn1",
    stream="img",
    sides={"image_rotary_emb": (1, (None, "img"))},  # tables of frequencies, and the tokens' positions in them
    whole=("encoder_hidden_states", "temb", "encoder_attention_mask"),
    refused=("attention_mask",),
    chained=True,
)
register_adapter(
    Adapter(
        usual_spec("AllegroTransformer3DModel", BLOCKS),
        conditions=("encoder_hidden_states", "encoder_attention_mask"),
        optional=("encoder_attention_mask",),
        widths={"encoder_hidden_states": "caption_channels"},
        geometry=lambda config: (config["in_channels"], (1, config["patch_size"], config["patch_size"])),
        inputs=inputs,
        processors={"attn1": Processor},
    )
)
