"""Kandinsky 5 (https://arxiv.org/abs/2511.14993): images, and videos from text or an image. No sparse attention."""

from .adapter import register_adapter, usual_spec
from .spec import single_stream

BLOCKS = single_stream(
    "visual_transformer_blocks",
    "visual_embed",
    "self_attention",
    stream="img",
    sides={"rope": (1, "img")},
    whole=("text_embed", "time_embed"),
    refused=("sparse_params",),
    chained=True,
)
register_adapter(
    usual_spec(
        "Kandinsky5Transformer3DModel",
        BLOCKS,
        head=None,
        heads="text_transformer_blocks.0.self_attention.num_heads",
        head_dim="",
        width="config.model_dim",
    )
)
