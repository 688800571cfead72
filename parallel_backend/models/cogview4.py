"""CogView4 (https://github.com/THUDM/CogView4)."""

from .adapter import Adapter, register_adapter
from .rotary import rotary_on_device
from .spec import BlockList, ModelSpec

BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("img", "txt"),
    attention={"attn1": "txt+img"},
    sides={"image_rotary_emb": (0, "img")},
    whole=("temb", "attention_kwargs"),
    refused=("attention_mask",),
    chained=True,
)
register_adapter(
    Adapter(
        ModelSpec(
            "CogView4Transformer2DModel",
            (BLOCKS,),
            heads="config.num_attention_heads",
            head_dim="config.attention_head_dim",
            head=BlockList("proj_out", tokens={"input": "img"}, returns="img", chained=True),
            image="img",
        ),
        conditions=("encoder_hidden_states", "original_size", "target_size", "crop_coords"),
        widths={"encoder_hidden_states": "text_embed_dim"},
        inputs=lambda config, latents, timestep, conditions: {
            "hidden_states": latents,
            "timestep": timestep,
            **conditions,
        },
        prepare=rotary_on_device("rope"),
    )
)
