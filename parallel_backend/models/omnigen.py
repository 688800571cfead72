"""OmniGen 1 (https://arxiv.org/abs/2409.11340) from text. Text, time and image are one sequence."""

from .adapter import register_adapter, usual_spec
from .spec import single_stream

BLOCKS = single_stream(
    "layers",
    "hidden_states",
    "self_attn",
    sides={"image_rotary_emb": (0, "x")},
    whole=("attention_mask",),
    chained=True,
)
register_adapter(
    usual_spec(
        "OmniGenTransformer2DModel",
        BLOCKS,
        head=None,
        image="",
        head_dim="",
        width="config.hidden_size",
        first_rows=("position_ids",),
    )
)
