"""HiDream I1 (https://arxiv.org/abs/2505.22705). Every block adds a text of its own, and drops it again."""

from .adapter import register_adapter, usual_spec
from .spec import BlockList

DOUBLE = BlockList(
    path="double_stream_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("img", "txt"),
    attention={"block.attn1": "img+txt"},
    sides={"image_rotary_emb": (1, "img+txt"), "hidden_states_masks": (1, "img")},
    whole=("temb",),
)
SINGLE = BlockList(
    path="single_stream_blocks",
    tokens={"hidden_states": "img+txt"},
    returns="img+txt",
    attention={"block.attn1": "img+txt"},
    sides={"image_rotary_emb": (1, "img+txt"), "hidden_states_masks": (1, "img+txt")},
    whole=("temb",),
    refused=("encoder_hidden_states",),
)
register_adapter(
    usual_spec(
        "HiDreamImageTransformer2DModel",
        DOUBLE,
        SINGLE,
        head=BlockList("final_layer.linear", tokens={"input": "img"}, returns="img"),
        image="",  # each block's own text would have to go with every patch
    )
)
