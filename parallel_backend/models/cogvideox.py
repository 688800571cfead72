"""CogVideoX (https://arxiv.org/abs/2408.06072) 1.0 and 1.5, from text or from an image."""

from .adapter import register_adapter, usual_spec
from .spec import BlockList

BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("img", "txt"),
    attention={"attn1": "txt+img"},
    sides={"image_rotary_emb": (0, "img")},
    whole=("temb", "attention_kwargs"),
    chained=True,
)
register_adapter(usual_spec("CogVideoXTransformer3DModel", BLOCKS, head=None), frames_first=True)
