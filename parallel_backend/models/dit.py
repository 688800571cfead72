"""DiT, class-conditional (https://arxiv.org/abs/2212.09748): DiT-XL/2 and the demo model."""

from dataclasses import replace

from .adapter import register_adapter, usual_spec
from .spec import BlockList, single_stream

BLOCKS = single_stream("transformer_blocks", "hidden_states", "attn1", stream="img", whole=(
        "attention_mask", "encoder_hidden_states", "encoder_attention_mask", "timestep", "cross_attention_kwargs",
        "class_labels", "added_cond_kwargs",
    ), chained=True)  # fmt: skip
register_adapter(
    usual_spec(
        "DiTTransformer2DModel",
        replace(BLOCKS, shared=("transformer_blocks.0.norm1.emb",)),
        head=BlockList("proj_out_2", tokens={"input": "img"}, returns="img", chained=True),
    )
)
