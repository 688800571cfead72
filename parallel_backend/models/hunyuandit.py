"""HunyuanDiT 1.0 to 1.2 (https://arxiv.org/abs/2405.08748)."""

from typing import Any

import torch

from .rotary import rotary_2d
from .spec import Config, ModelSpec, SideInput, Tensors, needs, register

BASE_LATENT_SIZE = 64
TEXT = ("encoder_hidden_states", "text_embedding_mask", "encoder_hidden_states_t5", "text_embedding_mask_t5")
META = ("image_meta_size", "style")


def inputs(config: Config, latents_BCHW: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """CLIP and T5 embeddings (B, tokens, width), their masks (B, tokens); image sizes (B, 6), style (B,) up to 1.1."""
    return {
        "hidden_states": latents_BCHW,
        "timestep": timestep_B.to(latents_BCHW.dtype),
        "image_rotary_emb": rotary_2d(config, latents_BCHW, BASE_LATENT_SIZE // config["patch_size"]),
        **conditions,
    }


register(
    ModelSpec(
        model_class="HunyuanDiT2DModel",
        blocks=("blocks",),
        streams=("hidden_states",),
        self_attention={"attn1": ("hidden_states",)},
        side_inputs=(SideInput("image_rotary_emb", 0, ("hidden_states",)),),
        conditions=TEXT + META,
        optional=META,
        check=needs(**dict.fromkeys(META, lambda config: config["use_style_cond_and_image_meta_size"])),
        inputs=inputs,
        output=lambda config, sample, latents: sample[:, : config["in_channels"]],
    )
)
