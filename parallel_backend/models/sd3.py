"""Stable Diffusion 3 (https://arxiv.org/abs/2403.03206) and 3.5, whose first blocks attend to the image twice."""

from .adapter import Adapter, register_adapter
from .spec import BlockList, ModelSpec

BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("txt", "img"),
    attention={"attn": "img+txt", "attn2": "img"},
    whole=("temb", "joint_attention_kwargs"),
    chained=True,
)
register_adapter(
    Adapter(
        ModelSpec(
            "SD3Transformer2DModel",
            (BLOCKS,),
            heads="config.num_attention_heads",
            head_dim="config.attention_head_dim",
            head=BlockList("proj_out", tokens={"input": "img"}, returns="img", chained=True),
            image="img",
            linear_sigmas=False,
        ),
        conditions=("encoder_hidden_states", "pooled_projections"),
        widths={"encoder_hidden_states": "joint_attention_dim", "pooled_projections": "pooled_projection_dim"},
        inputs=lambda config, latents, timestep, conditions: {
            "hidden_states": latents,
            "timestep": timestep,
            **conditions,
        },
    )
)
