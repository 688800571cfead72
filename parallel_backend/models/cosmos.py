"""Cosmos Predict 2 and 2.5 (https://arxiv.org/abs/2511.00062), from text, or from frames that are kept."""

from .adapter import register_adapter, usual_spec
from .spec import BlockList

BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img"},
    returns="img",
    attention={"attn1": "img"},
    sides={"image_rotary_emb": (0, "img"), "extra_pos_emb": (1, "img")},
    frames={"embedded_timestep": ("img", 3), "temb": ("img", 3)},
    whole=("encoder_hidden_states", "attention_mask"),
    refused=("controlnet_residual", "latents", "block_idx"),
    chained=True,
)
register_adapter(usual_spec("CosmosTransformer3DModel", BLOCKS))
