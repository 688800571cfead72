"""LTX-Video (https://arxiv.org/abs/2501.00103) from text: 0.9.0 and 0.9.1, and later ones, which need video_coords."""

from .adapter import register_adapter, usual_spec
from .spec import single_stream

BLOCKS = single_stream(
    "transformer_blocks",
    "hidden_states",
    "attn1",
    stream="img",
    sides={"image_rotary_emb": (1, "img"), "temb": (1, "img")},
    whole=("encoder_hidden_states", "encoder_attention_mask"),
    chained=True,
)
register_adapter(usual_spec("LTXVideoTransformer3DModel", BLOCKS))
