"""Lumina Image 2.0 (https://arxiv.org/abs/2503.21758)."""

from typing import Any

import torch

from .spec import Config, ModelSpec, SideInput, Sizes, Tensors, register, text_within


def inputs(config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """Gemma's embeddings (B, tokens, width), and a mask (B, tokens) where not all count; time runs from noise at 0."""
    text_BSD = conditions["encoder_hidden_states"]
    mask_BS = text_BSD.new_ones(text_BSD.shape[:2], dtype=torch.long)
    return {"hidden_states": latents_BCHW, "timestep": 1 - sigma_B, "encoder_attention_mask": mask_BS, **conditions}


register(
    ModelSpec(
        model_class="Lumina2Transformer2DModel",
        blocks=("layers",),
        streams=("hidden_states",),
        self_attention={"attn": ("hidden_states",)},
        kv_heads=lambda config: config["num_kv_heads"],
        side_inputs=(SideInput("image_rotary_emb", 1, ("hidden_states",)),),
        conditions=("encoder_hidden_states", "encoder_attention_mask"),
        optional=("encoder_attention_mask",),
        widths={"encoder_hidden_states": "cap_feat_dim"},
        sizes=lambda config: Sizes(
            config["num_attention_heads"], config["hidden_size"] // config["num_attention_heads"], config["num_layers"]
        ),
        pipefusion=False,
        timestep_scale=1e-3,
        largest=lambda config: tuple(config["axes_lens"][1:]),
        check=text_within(lambda config: config["axes_lens"][0] - 1),
        head="norm_out",
        inputs=inputs,
        output=lambda config, sample, latents: -sample,
    )
)
