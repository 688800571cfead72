"""AuraFlow (https://huggingface.co/fal/AuraFlow-v0.3)."""

import math
from dataclasses import replace

from .adapter import JOINED, JOINT, PROJ_OUT, Adapter, register_adapter, usual_spec

WHOLE = ("temb", "attention_kwargs")
DOUBLE, SINGLE = replace(JOINT, path="joint_transformer_blocks", whole=WHOLE), replace(JOINED, whole=WHOLE)
register_adapter(
    Adapter(
        usual_spec("AuraFlowTransformer2DModel", DOUBLE, SINGLE, head=replace(PROJ_OUT, chained=False)),
        conditions=("encoder_hidden_states",),
        widths={"encoder_hidden_states": "joint_attention_dim"},
        largest=lambda config: (math.isqrt(config["pos_embed_max_size"]),) * 2,
        timestep_scale=1e-3,
    )
)
