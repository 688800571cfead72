"""HunyuanDiT 1.0 to 1.2 (https://arxiv.org/abs/2405.08748)."""

from .adapter import register_adapter, usual_spec
from .spec import BlockList

BLOCKS = BlockList(
    path="blocks",
    tokens={"hidden_states": "img", "skip": "img"},
    returns="img",
    attention={"attn1": "img"},
    sides={"image_rotary_emb": (0, "img")},
    whole=("encoder_hidden_states", "temb"),
    chained=True,
)
register_adapter(usual_spec("HunyuanDiT2DModel", BLOCKS, skips=True))
