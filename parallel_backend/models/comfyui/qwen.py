"""Qwen-Image, and Mage-Flow, which has Qwen-Image's blocks."""

from ..spec import BlockList, Places, register_class

BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("txt", "img"),
    attention={"attn": "txt+img"},
    sides={
        "image_rotary_emb": (2, "txt+img"),
        "encoder_hidden_states_mask": (-1, "txt"),
        "timestep_zero_index": Places("img"),
    },
    local_masks={"attn": ""},
    whole=("temb",),
)

register_class(
    "comfy.ldm.qwen_image.model.QwenImageTransformer2DModel",
    BLOCKS,
    head=BlockList("proj_out", tokens={"0": "img"}, returns="img"),
    image="img",
    also=("comfy.ldm.mage_flow.model.MageFlowTransformer2DModel",),
)
