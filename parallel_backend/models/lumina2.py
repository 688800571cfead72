"""Lumina Image 2.0 (https://arxiv.org/abs/2503.21758)."""

from .adapter import register_adapter
from .spec import BlockList, ModelSpec, single_stream

BLOCKS = single_stream(
    "layers",
    "hidden_states",
    "attn",
    sides={"image_rotary_emb": (1, "x")},
    whole=("attention_mask", "temb"),
    chained=True,
)
register_adapter(
    ModelSpec(
        "Lumina2Transformer2DModel",
        (BLOCKS,),
        heads="config.num_attention_heads",
        width="config.hidden_size",
        kv_heads="config.num_kv_heads",
        head=BlockList("norm_out", tokens={"x": "x"}, returns="x", whole=("conditioning_embedding",), chained=True),
    )
)
