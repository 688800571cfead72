"""Stable Diffusion 3 (https://arxiv.org/abs/2403.03206) and 3.5, whose first blocks attend to the image twice."""

from .adapter import register_adapter, usual_spec
from .spec import BlockList

BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("txt", "img"),
    attention={"attn": "img+txt", "attn2": "img"},
    whole=("temb", "joint_attention_kwargs"),
    chained=True,
)
register_adapter(usual_spec("SD3Transformer2DModel", BLOCKS))
