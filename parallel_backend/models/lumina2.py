"""Lumina Image 2.0 (https://arxiv.org/abs/2503.21758)."""

from typing import Any

import torch

from .adapter import Adapter, Config, Tensors, register_adapter, text_within
from .spec import BlockList, ModelSpec, single_stream


def inputs(config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """Gemma's embeddings (B, tokens, width), and a mask (B, tokens) if not all count. Time starts from noise at 0."""
    text_BSD = conditions["encoder_hidden_states"]
    mask_BS = text_BSD.new_ones(text_BSD.shape[:2], dtype=torch.long)
    return {"hidden_states": latents_BCHW, "timestep": 1 - sigma_B, "encoder_attention_mask": mask_BS, **conditions}


BLOCKS = single_stream(
    "layers",
    "hidden_states",
    "attn",
    sides={"image_rotary_emb": (1, "x")},
    whole=("attention_mask", "temb"),
    chained=True,
)
register_adapter(
    Adapter(
        ModelSpec(
            "Lumina2Transformer2DModel",
            (BLOCKS,),
            heads="config.num_attention_heads",
            width="config.hidden_size",
            kv_heads="config.num_kv_heads",
            head=BlockList("norm_out", tokens={"x": "x"}, returns="x", whole=("conditioning_embedding",), chained=True),
        ),
        conditions=("encoder_hidden_states", "encoder_attention_mask"),
        optional=("encoder_attention_mask",),
        widths={"encoder_hidden_states": "cap_feat_dim"},
        timestep_scale=1e-3,
        largest=lambda config: tuple(config["axes_lens"][1:]),
        check=text_within(lambda config: config["axes_lens"][0] - 1),
        inputs=inputs,
        output=lambda config, sample, latents: -sample,
    )
)
