"""HunyuanVideo (https://arxiv.org/abs/2412.03603), from text, or from an image in channels of its own."""

from dataclasses import replace

from .adapter import register_adapter, usual_spec
from .flux import PARALLEL_MLP
from .spec import BlockList

DOUBLE = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("img", "txt"),
    attention={"attn": "img+txt"},
    sides={"freqs_cis": (0, "img")},
    whole=("temb", "attention_mask", "1"),  # the first frame's tokens; only used with "0"
    refused=("0",),
    chained=True,
)
SINGLE = replace(
    DOUBLE,
    path="single_transformer_blocks",
    parallel_mlp=PARALLEL_MLP,
    sides={"image_rotary_emb": (0, "img")},
)
register_adapter(usual_spec("HunyuanVideoTransformer3DModel", DOUBLE, SINGLE, image=""))
