"""Wan 2.1 and 2.2 (https://arxiv.org/abs/2503.20314), from text, from an image, or between two images."""

from .adapter import register_adapter, usual_spec
from .spec import single_stream

BLOCKS = single_stream(
    "blocks",
    "hidden_states",
    "attn1",
    stream="img",
    sides={"rotary_emb": (1, "img")},
    frames={"temb": ("img", 4)},
    whole=("encoder_hidden_states",),
    chained=True,
)
register_adapter(usual_spec("WanTransformer3DModel", BLOCKS))
