"""EasyAnimate 5.1 (https://arxiv.org/abs/2405.18991), from text, from images (InP) or under control."""

from .adapter import register_adapter, usual_spec
from .rotary import rotary_on_device
from .spec import BlockList

# Blocks that have one set of weights for image and text take and return the same.
BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("img", "txt"),
    attention={"attn1": "txt+img"},
    sides={"image_rotary_emb": (0, "img")},
    whole=("temb",),
    chained=True,
)
register_adapter(usual_spec("EasyAnimateTransformer3DModel", BLOCKS), prepare=rotary_on_device("rope_embedding"))
