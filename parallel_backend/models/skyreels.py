"""SkyReels V2 (https://arxiv.org/abs/2504.13074) from text or an image: Wan's blocks. Without diffusion forcing."""

from dataclasses import replace

from .adapter import register_adapter, usual_spec
from .wan import BLOCKS

register_adapter(
    usual_spec(
        "SkyReelsV2Transformer3DModel",
        replace(BLOCKS, frames={}, whole=("encoder_hidden_states", "temb"), refused=("attention_mask",)),
    )
)
