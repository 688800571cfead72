"""AuraFlow (https://huggingface.co/fal/AuraFlow-v0.3)."""

import math
from dataclasses import replace

from .adapter import PROJ_OUT, Adapter, Sizes, register_adapter, usual_spec
from .spec import BlockList

JOINT = BlockList(
    path="joint_transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("txt", "img"),
    attention={"attn": "txt+img"},
    whole=("temb", "attention_kwargs"),
    chained=True,
)
SINGLE = replace(
    JOINT,
    path="single_transformer_blocks",
    tokens={"hidden_states": "txt+img"},
    returns="txt+img",
)
register_adapter(
    Adapter(
        usual_spec("AuraFlowTransformer2DModel", JOINT, SINGLE, head=replace(PROJ_OUT, chained=False)),
        conditions=("encoder_hidden_states",),
        widths={"encoder_hidden_states": "joint_attention_dim"},
        sizes=lambda config: Sizes(
            config["num_attention_heads"],
            config["attention_head_dim"],
            config["num_mmdit_layers"] + config["num_single_dit_layers"],
        ),
        largest=lambda config: (math.isqrt(config["pos_embed_max_size"]),) * 2,
        timestep_scale=1e-3,
        inputs=lambda config, latents, sigma, conditions: {"hidden_states": latents, "timestep": sigma, **conditions},
    )
)
