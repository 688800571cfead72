"""Qwen-Image and Qwen-Image-Edit (https://arxiv.org/abs/2508.02324)."""

from dataclasses import replace

from .adapter import JOINT, register_adapter, usual_spec

BLOCKS = replace(
    JOINT,
    sides={
        "image_rotary_emb": (0, ("img", "txt")),
        "encoder_hidden_states_mask": (1, "txt"),
        "modulate_index": (1, "img"),
    },
    local_masks=("attn",),
)
register_adapter(usual_spec("QwenImageTransformer2DModel", BLOCKS, image=""))
