"""Sana (https://arxiv.org/abs/2410.10629). Its attention is linear, and it convolves over the image in every block:
only rows of the batch, and blocks, can be shared exactly."""

from .adapter import register_adapter, usual_spec
from .spec import single_stream

BLOCKS = single_stream(
    "transformer_blocks",
    "hidden_states",
    "attn1",
    stream="img",
    whole=("encoder_hidden_states", "encoder_attention_mask", "timestep", "height", "width"),
    refused=("attention_mask",),
    chained=True,
)
register_adapter(
    usual_spec(
        "SanaTransformer2DModel",
        BLOCKS,
        head=None,
        image="",
        unshared="its attention is linear, and it convolves over the image in every block",
    )
)
