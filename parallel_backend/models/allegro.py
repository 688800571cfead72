"""Allegro (https://arxiv.org/abs/2410.15458), from text."""

from typing import Any

import torch

from .spec import LOCAL, single_stream
from .usual import register_usual, replace_processors


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
    between=LOCAL,
)
register_usual("AllegroTransformer3DModel", BLOCKS, prepare=replace_processors(Processor))
