"""Flux.2 dev, with the guidance scale as a condition, and klein (https://github.com/black-forest-labs/flux2)."""

from dataclasses import replace

from .adapter import JOINED, JOINT, PROJ_OUT, register_adapter, usual_spec

ROTARY = {"image_rotary_emb": (0, "txt+img")}
DOUBLE = replace(JOINT, sides=ROTARY, whole=("temb_mod_img", "temb_mod_txt", "joint_attention_kwargs"))
SINGLE = replace(
    JOINED,
    parallel_mlp={"attn.to_qkv_mlp_proj": "qkv+"},
    sides=ROTARY,
    whole=("temb_mod", "joint_attention_kwargs", "split_hidden_states"),
    refused=("encoder_hidden_states", "text_seq_len"),
)
register_adapter(usual_spec("Flux2Transformer2DModel", DOUBLE, SINGLE, head=replace(PROJ_OUT, chained=False)))
